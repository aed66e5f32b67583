//! Result codes of the driver.

macro_rules! codes {
    ($($name:ident = $value:literal $text:literal,)*) => {
        $(#[allow(dead_code, reason = "the table is whole")]
        pub(super) const $name: u32 = $value;)*

        /// The name of a code, ending in NUL.
        pub(super) fn name(code: u32) -> Option<&'static std::ffi::CStr> {
            let text = match code {
                $($value => concat!("CUDA_ERROR_", stringify!($name), "\0"),)*
                0 => "CUDA_SUCCESS\0",
                _ => return None,
            };
            std::ffi::CStr::from_bytes_with_nul(text.as_bytes()).ok()
        }

        /// A code in words, ending in NUL.
        pub(super) fn text(code: u32) -> Option<&'static std::ffi::CStr> {
            let text = match code {
                $($value => concat!($text, "\0"),)*
                0 => "no error\0",
                _ => return None,
            };
            std::ffi::CStr::from_bytes_with_nul(text.as_bytes()).ok()
        }
    };
}

codes! {
    INVALID_VALUE = 1 "invalid argument",
    OUT_OF_MEMORY = 2 "out of memory",
    NOT_INITIALIZED = 3 "initialization error",
    DEINITIALIZED = 4 "driver shutting down",
    NO_DEVICE = 100 "no CUDA-capable device is detected",
    INVALID_DEVICE = 101 "invalid device ordinal",
    INVALID_IMAGE = 200 "device kernel image is invalid",
    INVALID_CONTEXT = 201 "invalid device context",
    NO_BINARY_FOR_GPU = 209 "no kernel image is available for execution on the device",
    ECC_UNCORRECTABLE = 214 "uncorrectable ECC error encountered",
    PEER_ACCESS_UNSUPPORTED = 217 "peer access is not supported between these two devices",
    INVALID_PTX = 218 "a PTX JIT compilation failed",
    UNSUPPORTED_PTX_VERSION = 222 "the provided PTX was compiled with an unsupported toolchain.",
    FILE_NOT_FOUND = 301 "file not found",
    INVALID_HANDLE = 400 "invalid resource handle",
    ILLEGAL_STATE = 401 "the operation cannot be performed in the present state",
    NOT_FOUND = 500 "named symbol not found",
    NOT_READY = 600 "device not ready",
    ILLEGAL_ADDRESS = 700 "an illegal memory access was encountered",
    LAUNCH_OUT_OF_RESOURCES = 701 "too many resources requested for launch",
    LAUNCH_TIMEOUT = 702 "the launch timed out and was terminated",
    PEER_ACCESS_ALREADY_ENABLED = 704 "peer access is already enabled",
    PEER_ACCESS_NOT_ENABLED = 705 "peer access has not been enabled",
    PRIMARY_CONTEXT_ACTIVE = 708 "cannot set while device is active in this process",
    CONTEXT_IS_DESTROYED = 709 "context is destroyed",
    HOST_MEMORY_ALREADY_REGISTERED = 712 "part or all of the requested memory range is already \
        mapped",
    HOST_MEMORY_NOT_REGISTERED = 713 "pointer does not correspond to a registered memory region",
    ILLEGAL_INSTRUCTION = 715 "an illegal instruction was encountered",
    MISALIGNED_ADDRESS = 716 "misaligned address",
    LAUNCH_FAILED = 719 "unspecified launch failure",
    COOPERATIVE_LAUNCH_TOO_LARGE = 720 "too many blocks in cooperative launch",
    NOT_SUPPORTED = 801 "operation not supported",
    MPS_CONNECTION_FAILED = 805 "MPS client failed to connect to the MPS control daemon or server",
    MPS_RPC_FAILURE = 806 "the remote procedural call between the MPS server and client failed",
    MPS_SERVER_NOT_READY = 807 "MPS server is not ready to accept new MPS client requests",
    MPS_MAX_CLIENTS_REACHED = 808 "the hardware resources required to create MPS client have been \
        exhausted",
    MPS_MAX_CONNECTIONS_REACHED = 809 "the hardware resources required to support device \
        connections have been exhausted",
    MPS_CLIENT_TERMINATED = 810 "the MPS client has been terminated by the server",
    STREAM_CAPTURE_UNSUPPORTED = 900 "operation not permitted when stream is capturing",
    STREAM_CAPTURE_INVALIDATED = 901 "operation failed due to a previous error during capture",
    STREAM_CAPTURE_MERGE = 902 "operation would result in a merge of separate capture sequences",
    STREAM_CAPTURE_UNMATCHED = 903 "capture was not ended in the same stream as it began",
    STREAM_CAPTURE_UNJOINED = 904 "capturing stream has unjoined work",
    STREAM_CAPTURE_ISOLATION = 905 "dependency created on uncaptured work in another stream",
    STREAM_CAPTURE_IMPLICIT = 906 "operation would make the legacy stream depend on a capturing \
        blocking stream",
    CAPTURED_EVENT = 907 "operation not permitted on an event last recorded in a capturing stream",
    EXTERNAL_DEVICE = 911 "an asynchronous error has occurred in external entity outside of CUDA",
    UNKNOWN = 999 "unknown error",
}
