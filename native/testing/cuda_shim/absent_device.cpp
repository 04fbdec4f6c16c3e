// A device guard for CUDA that does nothing, in a torch without CUDA: fake CUDA tensors then work there as they
// do in a torch with CUDA on a machine without a GPU.

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>)

}  // namespace
