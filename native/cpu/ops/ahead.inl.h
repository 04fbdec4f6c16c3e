// What memory is asked for ahead of its use: line by line beside other work, since a burst of requests waits for
// the first of them to be answered.
#pragma once

#include "token_block.inl.h"

namespace fx {

class Ahead {
 public:
  // Rows of equal length at equal distances, line by line.
  struct Lines {
    const char *line = nullptr, *end = nullptr, *row = nullptr;  // the next line, the end of its row, that row
    int64_t bytes = 0, stride = 0, rows = 0;                     // rows: those behind this one

    FX_MEMBER bool done() const { return line >= end; }
    FX_MEMBER void ask() {
      if (done()) return;
      __builtin_prefetch(line, 0, 2);
      line += line_bytes;
      if (line < end || rows == 0) return;
      --rows, row += stride;
      line = line_of(row), end = row + bytes;
    }
  };

  FX_MEMBER void add(const TokenBlock& block, int64_t tokens, int64_t width) {
    const int64_t item = block.dtype == Dtype::bfloat16 ? 2 : 4;
    const bool by_token = block.width_stride == 1;
    const int64_t rows = by_token ? tokens : width, bytes = (by_token ? width : tokens) * item;
    const int64_t stride = (by_token ? block.token_stride : block.width_stride) * item;
    auto* row = static_cast<const char*>(block.data);
    blocks[count++] = {line_of(row), row + bytes, row, bytes, stride, rows - 1};
  }

  // A loop asks in a copy, which registers hold, and leaves it here.
  FX_MEMBER Lines lines() const { return count > 0 ? blocks[count - 1] : Lines{}; }
  FX_MEMBER void leave(const Lines& lines) {
    if (count > 0) blocks[count - 1] = lines, count -= lines.done();
  }

  // Beside a loop that cannot: some lines at once.
  FX_MEMBER void ask(int64_t most) {
    for (; most > 0 && count > 0; --most) {
      Lines& lines = blocks[count - 1];
      lines.ask();
      count -= lines.done();
    }
  }

 private:
  static constexpr int64_t line_bytes = 64;
  Lines blocks[3];
  int count = 0;

  static FX_MEMBER const char* line_of(const char* at) { return at - reinterpret_cast<uintptr_t>(at) % line_bytes; }
};

}  // namespace fx
