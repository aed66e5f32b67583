//! The meaning of the driver's codes: after which nothing more can be computed, and what helps.

use super::sys::{CUresult as Code, Code as Number};
use crate::backend::DriverError;

impl DriverError {
    /// True where the device, or the host for pinned memory, has no memory left.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.code == Code::CUDA_ERROR_OUT_OF_MEMORY as Number
    }

    /// True for an error after which the context gives the same error to every call: nothing can be
    /// computed any more in this process on this device.
    ///
    /// A call that may report work of before is believed to do so with every code that is not known
    /// to be of the call itself: a driver may have codes that are newer than this.
    pub(crate) fn is_sticky(&self) -> bool {
        let is = |codes: &[Code]| codes.iter().any(|code| *code as Number == self.code);
        is(FINAL) || (REPORTS_WORK.contains(&self.call) && !is(OF_A_CALL))
    }
}

/// Codes after which a context is lost, whatever call gives them.
const FINAL: &[Code] = &[
    Code::CUDA_ERROR_DEVICE_UNAVAILABLE,
    Code::CUDA_ERROR_INVALID_CONTEXT,
    Code::CUDA_ERROR_ECC_UNCORRECTABLE,
    Code::CUDA_ERROR_NVLINK_UNCORRECTABLE,
    Code::CUDA_ERROR_ILLEGAL_ADDRESS,
    Code::CUDA_ERROR_LAUNCH_TIMEOUT,
    Code::CUDA_ERROR_CONTEXT_IS_DESTROYED,
    Code::CUDA_ERROR_ASSERT,
    Code::CUDA_ERROR_HARDWARE_STACK_ERROR,
    Code::CUDA_ERROR_ILLEGAL_INSTRUCTION,
    Code::CUDA_ERROR_MISALIGNED_ADDRESS,
    Code::CUDA_ERROR_INVALID_ADDRESS_SPACE,
    Code::CUDA_ERROR_INVALID_PC,
    Code::CUDA_ERROR_LAUNCH_FAILED,
    Code::CUDA_ERROR_CONTAINED,
    Code::CUDA_ERROR_TENSOR_MEMORY_LEAK,
    Code::CUDA_ERROR_DEVICE_NOT_LICENSED,
    Code::CUDA_ERROR_SYSTEM_NOT_READY,
    Code::CUDA_ERROR_MPS_CONNECTION_FAILED,
    Code::CUDA_ERROR_MPS_RPC_FAILURE,
    Code::CUDA_ERROR_MPS_SERVER_NOT_READY,
    Code::CUDA_ERROR_MPS_MAX_CLIENTS_REACHED,
    Code::CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED,
    Code::CUDA_ERROR_MPS_CLIENT_TERMINATED,
    Code::CUDA_ERROR_EXTERNAL_DEVICE,
    Code::CUDA_ERROR_UNKNOWN,
];

/// Calls whose result may be that of work which was begun before.
const REPORTS_WORK: &[&str] = &[
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuLaunchKernel",
    "cuMemcpyDtoDAsync",
    "cuMemcpyDtoHAsync",
    "cuMemcpyHtoDAsync",
    "cuMemcpyPeerAsync",
    "cuStreamQuery",
    "cuStreamWaitEvent",
];

/// Codes that such a call gives of itself, and that leave its context as it was.
const OF_A_CALL: &[Code] = &[
    Code::CUDA_ERROR_INVALID_VALUE,
    Code::CUDA_ERROR_OUT_OF_MEMORY,
    Code::CUDA_ERROR_NOT_INITIALIZED,
    Code::CUDA_ERROR_INVALID_IMAGE,
    Code::CUDA_ERROR_NO_BINARY_FOR_GPU,
    Code::CUDA_ERROR_INVALID_PTX,
    Code::CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
    Code::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    Code::CUDA_ERROR_JIT_COMPILATION_DISABLED,
    Code::CUDA_ERROR_INVALID_HANDLE,
    Code::CUDA_ERROR_ILLEGAL_STATE,
    Code::CUDA_ERROR_NOT_FOUND,
    Code::CUDA_ERROR_NOT_READY,
    Code::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
    Code::CUDA_ERROR_NOT_PERMITTED,
    Code::CUDA_ERROR_NOT_SUPPORTED,
    Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
    Code::CUDA_ERROR_STREAM_CAPTURE_MERGE,
    Code::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
    Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
    Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
    Code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
    Code::CUDA_ERROR_CAPTURED_EVENT,
    Code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
];

/// What a code is a sign of and what helps, where the driver's text does not say it.
pub(super) fn advice(code: Number) -> Option<&'static str> {
    let is = |codes: &[Code]| codes.iter().any(|known| *known as Number == code);
    if is(&[
        Code::CUDA_ERROR_MPS_CONNECTION_FAILED,
        Code::CUDA_ERROR_MPS_RPC_FAILURE,
        Code::CUDA_ERROR_MPS_SERVER_NOT_READY,
    ]) {
        return Some(
            "the MPS server of this GPU does not answer: start `nvidia-cuda-mps-control` again, or \
             run without MPS (unset CUDA_MPS_PIPE_DIRECTORY)",
        );
    }
    if is(&[Code::CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, Code::CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED])
    {
        return Some("MPS takes no more clients: end another process on this GPU");
    }
    if is(&[Code::CUDA_ERROR_CONTEXT_IS_DESTROYED, Code::CUDA_ERROR_INVALID_CONTEXT]) {
        return Some(
            "something in this process has reset the GPU (`cudaDeviceReset`, \
             `cuDevicePrimaryCtxReset`), with all that fanwise had there: start this process again",
        );
    }
    [
        (
            Code::CUDA_ERROR_MPS_CLIENT_TERMINATED,
            "MPS ends all its clients of a GPU where one of them fails: start this process again",
        ),
        (
            Code::CUDA_ERROR_EXTERNAL_DEVICE,
            "a device that works with the GPU failed, not the program: see the system's log \
             (`dmesg`), then start this process again",
        ),
        (
            Code::CUDA_ERROR_DEVICE_UNAVAILABLE,
            "another process has the GPU to itself: see `nvidia-smi`, which also sets the compute \
             mode",
        ),
        (
            Code::CUDA_ERROR_SYSTEM_NOT_READY,
            "GPUs with NVSwitch need the service `nvidia-fabricmanager`",
        ),
        (
            Code::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
            "libcuda and the kernel module are of different drivers: restart the machine",
        ),
    ]
    .into_iter()
    .find_map(|(known, advice)| (known as Number == code).then_some(advice))
}

#[cfg(test)]
mod tests {
    use super::{Code, DriverError, FINAL, Number, OF_A_CALL, advice};

    fn error(call: &'static str, code: Number) -> DriverError {
        DriverError { call, code, name: String::new(), text: String::new() }
    }

    #[test]
    fn codes_of_other_parties_are_final_and_have_a_way_out() {
        for code in (805..=810).chain([911, 709, 201]) {
            for call in ["cuMemAlloc", "cuCtxPushCurrent", "cuStreamQuery"] {
                assert!(error(call, code).is_sticky(), "{call}: {code}");
            }
            assert!(advice(code).is_some(), "{code}");
        }
        let mps = |code| advice(code).is_some_and(|text| text.contains("MPS"));
        assert!((805..=810).all(mps) && !mps(911) && !mps(2));
        assert_eq!(advice(Code::CUDA_ERROR_OUT_OF_MEMORY as Number), None);
        // A backend keeps its contexts, also one that something has destroyed: another program of
        // the same backend would fail as well.
        let begins_anew = |text: &str| text.ends_with("start this process again");
        assert!([201, 709].into_iter().all(|code| advice(code).is_some_and(begins_anew)));
    }

    /// No driver has the code 4321 yet.
    #[test]
    fn an_unknown_code_is_final_where_it_may_be_of_work() {
        for code in [4321, Code::CUDA_ERROR_OPERATING_SYSTEM as Number] {
            for call in ["cuStreamQuery", "cuLaunchKernel", "cuEventSynchronize"] {
                assert!(error(call, code).is_sticky(), "{call}: {code}");
            }
            assert!(!error("cuMemAlloc", code).is_sticky());
            assert!(!error("cuModuleLoadData", code).is_sticky());
        }
        assert!(OF_A_CALL.iter().all(|code| !FINAL.contains(code)));
        assert!(!error("cuLaunchKernel", Code::CUDA_ERROR_OUT_OF_MEMORY as Number).is_sticky());
        assert!(!error("cuStreamQuery", Code::CUDA_ERROR_NOT_READY as Number).is_sticky());
    }
}
