# Defines the target `stable_torch`: the headers of libtorch's stable ABI and the library that
# exports it, from the torch that the building Python imports.

if(NOT Python_EXECUTABLE AND PYTHON_EXECUTABLE)
  set(Python_EXECUTABLE "${PYTHON_EXECUTABLE}")
endif()
find_package(Python REQUIRED COMPONENTS Interpreter)

# find_spec instead of import: nothing of torch has to run to learn where it is.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
          "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
  OUTPUT_VARIABLE torch_root
  RESULT_VARIABLE torch_missing
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(torch_missing)
  message(FATAL_ERROR "torch is not importable by ${Python_EXECUTABLE}: install torch first, then build "
                      "with `pip install --no-build-isolation` in the environment that holds your torch.")
endif()

file(STRINGS "${torch_root}/include/torch/headeronly/version.h" torch_version_lines
     REGEX "#define TORCH_VERSION_(MAJOR|MINOR) ")
string(REGEX REPLACE "[^0-9;]" "" torch_version "${torch_version_lines}")
list(JOIN torch_version "." torch_version)
if(torch_version VERSION_LESS 2.11)
  message(FATAL_ERROR "fxrewrite needs torch 2.11 or newer; ${torch_root} is ${torch_version}.")
endif()
file(STRINGS "${torch_root}/version.py" torch_has_cuda REGEX "^cuda.*= *'")
if(torch_has_cuda)
  set(torch_has_cuda ON)
endif()
message(STATUS "torch ${torch_version} at ${torch_root}")

add_library(stable_torch INTERFACE)
target_include_directories(stable_torch SYSTEM INTERFACE "${torch_root}/include")
# The oldest torch that the library serves: the headers hide whatever is newer.
target_compile_definitions(stable_torch INTERFACE TORCH_TARGET_VERSION=0x020b000000000000)
# No rpath to it: torch is always loaded before this library, and the loader matches by name.
target_link_libraries(stable_torch INTERFACE "${torch_root}/lib/libtorch_cpu${CMAKE_SHARED_LIBRARY_SUFFIX}")
