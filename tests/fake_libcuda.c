/* A CUDA driver without a GPU for the compiled part: it writes down who calls what in which context,
   and keeps what kernels are launched with.  "Device" memory is memory of the host. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t Address;
typedef void *Handle;
typedef struct {
    char bytes[64];
} IpcHandle;

/* Values of the driver's enumerations. */
enum { OUT_OF_MEMORY = 2, NO_DEVICE = 101, NO_CONTEXT = 201, NOT_READY = 600,
       ILLEGAL_ADDRESS = 700, CAPTURE_IMPLICIT = 906 };
enum { MEMORY_TYPE = 2, IS_MANAGED = 8, DEVICE_ORDINAL = 9, IPC_CAPABLE = 10, MAPPED = 13 };
/* More than so many bytes there are not. */
enum { FAKE_MEMORY = 1 << 20 };
/* The handle of a kernel with four numbers as its parameters; others have one, a structure. */
#define KERNEL_OF_NUMBERS ((Handle)(uintptr_t)4)
/* That of a stream on which something has failed. */
#define BROKEN_STREAM ((Handle)(uintptr_t)5)

/* Names of the calls that matter, each with "@" and the number of its context. */
char fake_log[1 << 16];
/* The arguments of the last launch, as far as they matter: see Args in _cuda.pyx. */
uint64_t fake_args[32];
/* What is put on streams: "k5" a kernel on stream 5, "r77,5" a record of event 77 there, "w5,77" a
   wait for it. */
char fake_order[1 << 12];
/* The number of the graph that a stream is captured for, by its handle. */
uint64_t fake_graphs[128];
/* Whether a stream that waits for the legacy one is captured: then that one must not be asked. */
int fake_implicit;
/* While this is set, calls that can wait for a GPU wait, for 2 seconds at most. */
volatile int fake_hold;
int fake_waited_in_vain;

static Handle contexts[64];
static int depth;

void fake_set_context(Handle context) { contexts[depth] = context; }

static int called(const char *name)
{
    const size_t length = strlen(fake_log);
    snprintf(fake_log + length, sizeof fake_log - length, "%s@%d ", name,
             (int)(uintptr_t)contexts[depth]);
    return 0;
}

static void put(const char *kind, Handle first, Handle second)
{
    const size_t length = strlen(fake_order);
    snprintf(fake_order + length, sizeof fake_order - length, second ? "%s%d,%d " : "%s%d ", kind,
             (int)(uintptr_t)first, (int)(uintptr_t)second);
}

static int waiting(const char *name)
{
    for (int tries = 0; fake_hold && tries < 2000; tries++)
        usleep(1000);
    fake_waited_in_vain += fake_hold;
    return called(name);
}

int cuGetErrorString(int status, const char **text)
{
    (void)status;
    *text = "fake error";
    return 0;
}

int cuInit(unsigned flags)
{
    (void)flags;
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal < 2 ? 0 : NO_DEVICE;
}

int cuDeviceGetCount(int *count)
{
    *count = 2;
    return 0;
}

int cuDeviceGetUuid_v2(char *name, int device)
{
    memset(name, device, 16);
    return 0;
}

int cuDeviceGetName(char *name, int length, int device)
{
    snprintf(name, length, "Fake %d", device);
    return 0;
}

int cuDevicePrimaryCtxRetain(Handle *context, int device)
{
    *context = (Handle)(uintptr_t)(device + 1);
    return waiting("cuDevicePrimaryCtxRetain");
}

int cuCtxGetDevice(int *device)
{
    *device = (int)(uintptr_t)contexts[depth] - 1;
    return *device < 0 ? NO_CONTEXT : 0;
}

int cuDeviceGetP2PAttribute(int *answer, int attribute, int one, int other)
{
    (void)attribute;
    *answer = one != other;
    return 0;
}

int cuCtxGetCurrent(Handle *context)
{
    *context = contexts[depth];
    return 0;
}

int cuCtxPushCurrent_v2(Handle context)
{
    contexts[++depth] = context;
    return 0;
}

int cuCtxPopCurrent_v2(Handle *context)
{
    *context = contexts[depth--];
    return 0;
}

int cuCtxSynchronize(void) { return waiting("cuCtxSynchronize"); }

int cuMemAlloc_v2(Address *address, size_t nbytes)
{
    *address = (uintptr_t)malloc(nbytes);
    return waiting("cuMemAlloc");
}

int cuMemFree_v2(Address address)
{
    free((void *)(uintptr_t)address);
    return waiting("cuMemFree");
}

int cuMemAllocAsync(Address *address, size_t nbytes, Handle stream)
{
    (void)stream;
    if (nbytes > FAKE_MEMORY)
        return OUT_OF_MEMORY;
    *address = (uintptr_t)malloc(nbytes);
    return waiting("cuMemAllocAsync");
}

int cuMemFreeAsync(Address address, Handle stream)
{
    (void)stream;
    free((void *)(uintptr_t)address);
    return waiting("cuMemFreeAsync");
}

int cuMemHostAlloc(void **address, size_t nbytes, unsigned flags)
{
    (void)flags;
    if (nbytes > FAKE_MEMORY)
        return OUT_OF_MEMORY;
    *address = malloc(nbytes);
    return waiting("cuMemHostAlloc");
}

int cuMemHostRegister_v2(void *address, size_t nbytes, unsigned flags)
{
    (void)address, (void)nbytes, (void)flags;
    return waiting("cuMemHostRegister");
}

int cuMemHostUnregister(void *address)
{
    (void)address;
    return waiting("cuMemHostUnregister");
}

int cuMemFreeHost(void *address)
{
    free(address);
    return waiting("cuMemFreeHost");
}

int cuMemGetAddressRange_v2(Address *base, size_t *length, Address address)
{
    *base = address, *length = 1;
    return 0;
}

int cuIpcGetMemHandle(IpcHandle *handle, Address address)
{
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &address, sizeof address);
    return 0;
}

int cuIpcOpenMemHandle_v2(Address *address, IpcHandle handle, unsigned flags)
{
    (void)flags;
    memcpy(address, &handle, sizeof *address);
    return waiting("cuIpcOpenMemHandle");
}

int cuIpcCloseMemHandle(Address address)
{
    (void)address;
    return waiting("cuIpcCloseMemHandle");
}

/* Addresses below 2^32 are memory of device 1, but for those below 4096, of which nothing is known.
   Of the first MiBs number 2 is from a stream-ordered pool, number 3 managed, and on the host now,
   and number 4 by virtual memory management. */
int cuPointerGetAttribute(void *answer, int attribute, Address address)
{
    const int of_device = address < 1ull << 32, number = address >> 20 < 5 ? (int)(address >> 20) : 0;
    uint32_t found = 0;
    if (attribute == MEMORY_TYPE)
        found = of_device && number != 3 ? 2 : 1;
    if (attribute == DEVICE_ORDINAL || attribute == MAPPED)
        found = of_device;
    if (attribute == IS_MANAGED)
        found = number == 3;
    if (attribute == IPC_CAPABLE)
        found = of_device && number != 2 && number != 4;
    *(uint32_t *)answer = found;
    return address < 4096;
}

int cuMemsetD8Async(Address address, unsigned char value, size_t nbytes, Handle stream)
{
    (void)stream;
    memset((void *)(uintptr_t)address, value, nbytes);
    return waiting("cuMemsetD8Async");
}

int cuMemcpyAsync(Address target, Address source, size_t nbytes, Handle stream)
{
    (void)stream;
    memcpy((void *)(uintptr_t)target, (void *)(uintptr_t)source, nbytes);
    return waiting("cuMemcpyAsync");
}

int cuLaunchKernel(Handle function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, Handle stream, void **parameters, void **extra)
{
    (void)x, (void)y, (void)z, (void)bx, (void)by, (void)bz;
    (void)shared, (void)extra;
    put("k", stream, NULL);
    if (function != KERNEL_OF_NUMBERS)
        memcpy(fake_args, parameters[0], sizeof fake_args);
    else
        for (int i = 0; i < 4; i++)
            fake_args[i] = *(uint64_t *)parameters[i];
    return waiting("cuLaunchKernel");
}

int cuEventCreate(Handle *event, unsigned flags)
{
    static uintptr_t made = 77;
    (void)flags;
    *event = (Handle)made++;
    return 0;
}

int cuEventDestroy_v2(Handle event)
{
    (void)event;
    return 0;
}

int cuEventRecord(Handle event, Handle stream)
{
    put("r", event, stream);
    return waiting("cuEventRecord");
}

int cuEventQuery(Handle event)
{
    (void)event;
    return fake_hold ? NOT_READY : 0;
}

int cuEventSynchronize(Handle event)
{
    (void)event;
    return waiting("cuEventSynchronize");
}

int cuStreamCreate(Handle *stream, unsigned flags)
{
    (void)flags;
    *stream = (Handle)(uintptr_t)88;
    return called("cuStreamCreate");
}

int cuStreamDestroy_v2(Handle stream)
{
    (void)stream;
    return called("cuStreamDestroy");
}

int cuStreamSynchronize(Handle stream)
{
    return stream == BROKEN_STREAM ? ILLEGAL_ADDRESS : waiting("cuStreamSynchronize");
}

int cuStreamWaitEvent(Handle stream, Handle event, unsigned flags)
{
    (void)flags;
    put("w", stream, event);
    return waiting("cuStreamWaitEvent");
}

int cuStreamIsCapturing(Handle stream, int *answer)
{
    *answer = fake_graphs[(uintptr_t)stream] != 0;
    return called("cuStreamIsCapturing");
}

int cuStreamGetCaptureInfo_v2(Handle stream, int *answer, uint64_t *number, void **graph,
                              const void **before, size_t *count)
{
    (void)graph, (void)before, (void)count;
    if (!stream && fake_implicit)
        return CAPTURE_IMPLICIT;
    *number = fake_graphs[(uintptr_t)stream];
    *answer = *number != 0;
    return called("cuStreamGetCaptureInfo");
}
