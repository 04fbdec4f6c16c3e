// What a row may attend to: its keys, and its row of the mask, read in place by the mask's strides.
#pragma once

#include "../engine/base.h"
#include "sdpa.h"
#include "softmax_row.inl.h"

namespace fx {

// The keys that row `query` attends to, before any mask.
struct KeyRange {
  int64_t begin, end;
};

FX_INLINE KeyRange visible_keys(const SdpaArgs& args, int64_t query) {
  KeyRange range{0, args.keys};
  if (args.window > 0) {
    range.begin = larger(0, query - args.window + 1);
    range.end = smaller(range.end, query + args.window);
  }
  if (args.causal) range.end = smaller(range.end, query + 1);
  return range;
}

FX_INLINE const float* sink_of(const SdpaArgs& args, int64_t head) {
  return args.sinks == nullptr ? nullptr : args.sinks + head;
}

// One reader per thread: it keeps the last row that it had to gather. (A template so that each ISA has its own.)
template <class Isa>
struct MaskReader {
  const SdpaArgs& args;
  MaskForm form = MaskForm::none;
  int64_t item = 0;       // bytes of an element
  bool in_place = false;  // rows are used where they are
  void* row = nullptr;    // else they are copied to here, as byte or float ...
  const void* held = nullptr;
  int64_t held_count = 0;  // ... and a row that broadcasts over queries only once

  explicit MaskReader(const SdpaArgs& a) : args(a) {
    if (args.mask == nullptr) return;
    switch (args.mask_dtype) {
      case Dtype::boolean:
        form = args.fills ? MaskForm::replace : MaskForm::lower, item = 1;
        break;
      case Dtype::float32:
        form = MaskForm::add_float, item = 4;
        break;
      case Dtype::bfloat16:
        form = MaskForm::add_bf16, item = 2;
        break;
      default:
        form = MaskForm::add_f16, item = 2;
        break;
    }
    in_place = args.mask_strides[3] == 1;
    if (!in_place && item == 2) form = MaskForm::add_float;
  }

  static constexpr int64_t row_bytes(int64_t keys) { return keys * static_cast<int64_t>(sizeof(float)); }

  // The mask of `count` keys from `key` on, in the form that `form` names; null where there is no mask.
  const void* operator()(int64_t batch, int64_t head, int64_t query, int64_t key, int64_t count) {
    if (args.mask == nullptr) return nullptr;
    const char* from = at(batch, head, query, key);
    if (in_place) return from;
    if (from != held || count != held_count) gather(from, args.mask_strides[3], count);
    return row;
  }

  const char* at(int64_t batch, int64_t head, int64_t query, int64_t key) const {
    const int64_t* strides = args.mask_strides;
    const int64_t index = batch * strides[0] + head * strides[1] + query * strides[2] + key * strides[3];
    return static_cast<const char*>(args.mask) + index * item;
  }

 private:
  void gather(const void* from, int64_t stride, int64_t count) {
    held = from, held_count = count;
    auto* bytes = static_cast<uint8_t*>(row);
    auto* floats = static_cast<float*>(row);
    switch (args.mask_dtype) {
      case Dtype::boolean:
        for (int64_t j = 0; j < count; ++j) bytes[j] = static_cast<const uint8_t*>(from)[j * stride];
        break;
      case Dtype::float32:
        for (int64_t j = 0; j < count; ++j) floats[j] = static_cast<const float*>(from)[j * stride];
        break;
      case Dtype::bfloat16:
        for (int64_t j = 0; j < count; ++j) floats[j] = to_float(static_cast<const bf16*>(from)[j * stride]);
        break;
      default:
        for (int64_t j = 0; j < count; ++j) floats[j] = to_float(static_cast<const f16*>(from)[j * stride]);
    }
  }
};

}  // namespace fx
