// The GPUs of this machine, for code that knows no CUDA.
#pragma once
#include <cstddef>
#include <string>

namespace tessera::cuda {

/// GPUs that this process may use; 0 where there is none, or no driver.
int device_count();
/// Why there is none, in CUDA's words; empty where there is one.
std::string why_no_device();
/// Bytes that are free on the GPU of this process.
std::size_t free_memory();
/// Bytes of it that anyone uses.
std::size_t used_memory();
/// Returns when all work that this process gave its GPU is done. Throws Error(environment) when some of it failed.
void synchronize();
/// Returns when the work of a stream (cudaStream_t) is done. Throws Error(environment) when some of it failed.
void synchronize(void* stream);

/// Whether the work of a stream is done; does not wait. Throws as synchronize does.
bool idle(void* stream);

/// A device as every process of the machine names it.
struct DeviceName {
  std::string uuid;  ///< "GPU-8f1c0a52-...": of an instance (MIG) its own
  std::string bus;   ///< place on the PCI bus, "0000:17:00.0": instances of one GPU have the same
};
DeviceName device_name(int device);

/// Model and size of this thread's device: "NVIDIA H100 80GB HBM3 with 132 multiprocessors".
std::string device_model();

/// Whether this thread's device runs code for sm_90a: compute capability 9.0 alone.
bool is_hopper();

/// If the program has no machine code for this thread's device, so that the driver translates its kernels from PTX at the first start: a
/// sentence that says so, and how to build without it. Else empty.
std::string describe_translation();

/// Whether this thread's device multiplies fp8: compute capability 8.9 and later.
bool multiplies_fp8();

/// Bytes of shared memory that a block may ask for on this thread's device: 99 KiB on compute capabilities 8.6, 8.9 and 12.0, 163 on 8.0,
/// 227 on 9.0 and 10.0.
std::size_t shared_memory_limit();

/// What this thread does on a GPU from now on is done on this one.
void use_device(int device);

}  // namespace tessera::cuda
