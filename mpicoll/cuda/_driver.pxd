from libc.stdint cimport int64_t, uint64_t

ctypedef uint64_t Address  # CUdeviceptr
ctypedef void *Handle  # of contexts, functions, streams and events

cdef struct IpcHandle:
    char bytes[64]

# The driver's functions, by their names there.
cdef struct Calls:
    int (*error_string)(int, const char **) noexcept nogil
    int (*init)(unsigned) noexcept nogil
    int (*device_get)(int *, int) noexcept nogil
    int (*device_get_count)(int *) noexcept nogil
    int (*device_get_name)(char *, int, int) noexcept nogil
    int (*device_get_uuid)(char *, int) noexcept nogil
    int (*device_get_p2p_attribute)(int *, int, int, int) noexcept nogil
    int (*primary_ctx_retain)(Handle *, int) noexcept nogil
    int (*ctx_get_current)(Handle *) noexcept nogil
    int (*ctx_get_device)(int *) noexcept nogil
    int (*ctx_push)(Handle) noexcept nogil
    int (*ctx_pop)(Handle *) noexcept nogil
    int (*ctx_synchronize)() noexcept nogil
    int (*mem_alloc)(Address *, size_t) noexcept nogil
    int (*mem_free)(Address) noexcept nogil
    int (*mem_alloc_async)(Address *, size_t, Handle) noexcept nogil
    int (*mem_free_async)(Address, Handle) noexcept nogil
    int (*mem_host_alloc)(void **, size_t, unsigned) noexcept nogil
    int (*mem_free_host)(void *) noexcept nogil
    int (*mem_host_register)(void *, size_t, unsigned) noexcept nogil
    int (*mem_host_unregister)(void *) noexcept nogil
    int (*mem_get_address_range)(Address *, size_t *, Address) noexcept nogil
    int (*ipc_get_mem_handle)(IpcHandle *, Address) noexcept nogil
    int (*ipc_open_mem_handle)(Address *, IpcHandle, unsigned) noexcept nogil
    int (*ipc_close_mem_handle)(Address) noexcept nogil
    int (*pointer_get_attribute)(void *, int, Address) noexcept nogil
    int (*memset_d8_async)(Address, unsigned char, size_t, Handle) noexcept nogil
    int (*memcpy_async)(Address, Address, size_t, Handle) noexcept nogil
    int (*func_load)(Handle) noexcept nogil
    int (*launch_kernel)(
        Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle,
        void **, void **
    ) noexcept nogil
    int (*event_create)(Handle *, unsigned) noexcept nogil
    int (*event_destroy)(Handle) noexcept nogil
    int (*event_record)(Handle, Handle) noexcept nogil
    int (*event_query)(Handle) noexcept nogil
    int (*event_synchronize)(Handle) noexcept nogil
    int (*stream_create)(Handle *, unsigned) noexcept nogil
    int (*stream_destroy)(Handle) noexcept nogil
    int (*stream_synchronize)(Handle) noexcept nogil
    int (*stream_wait_event)(Handle, Handle, unsigned) noexcept nogil
    int (*stream_is_capturing)(Handle, int *) noexcept nogil
    int (*stream_get_capture_info)(
        Handle, int *, uint64_t *, void **, const void **, size_t *
    ) noexcept nogil

cdef Calls calls

cdef int check(int status, const char *what, int64_t one=*, int64_t other=*) except -1 nogil
