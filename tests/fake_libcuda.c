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

/* Names of the calls that matter, each with "@" and the number of its context. */
char fake_log[1 << 16];
/* The arguments of the last launch, as far as they matter: see Args in _cuda.pyx. */
uint64_t fake_args[32];
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

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
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

int cuMemHostAlloc(void **address, size_t nbytes, unsigned flags)
{
    (void)flags;
    *address = malloc(nbytes);
    return called("cuMemHostAlloc");
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

int cuPointerGetAttribute(void *answer, int attribute, Address address)
{
    (void)attribute, (void)address;
    *(uint32_t *)answer = 0;
    return 0;
}

int cuMemsetD8_v2(Address address, unsigned char value, size_t nbytes)
{
    memset((void *)(uintptr_t)address, value, nbytes);
    return called("cuMemsetD8");
}

int cuMemcpyDtoH_v2(void *target, Address source, size_t nbytes)
{
    memcpy(target, (void *)(uintptr_t)source, nbytes);
    return waiting("cuMemcpyDtoH");
}

int cuMemcpyHtoD_v2(Address target, const void *source, size_t nbytes)
{
    memcpy((void *)(uintptr_t)target, source, nbytes);
    return waiting("cuMemcpyHtoD");
}

int cuLaunchKernel(Handle function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, Handle stream, void **parameters, void **extra)
{
    (void)function, (void)x, (void)y, (void)z, (void)bx, (void)by, (void)bz;
    (void)shared, (void)stream, (void)extra;
    memcpy(fake_args, parameters[0], sizeof fake_args);
    return waiting("cuLaunchKernel");
}

int cuEventCreate(Handle *event, unsigned flags)
{
    (void)flags;
    *event = (Handle)(uintptr_t)77;
    return 0;
}

int cuEventDestroy_v2(Handle event)
{
    (void)event;
    return 0;
}

int cuEventRecord(Handle event, Handle stream)
{
    (void)event, (void)stream;
    return called("cuEventRecord");
}

int cuStreamWaitEvent(Handle stream, Handle event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return called("cuStreamWaitEvent");
}

int cuStreamIsCapturing(Handle stream, int *answer)
{
    (void)stream;
    *answer = 0;
    return called("cuStreamIsCapturing");
}
