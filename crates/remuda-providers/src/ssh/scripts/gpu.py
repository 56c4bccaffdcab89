# Computes on each GPU through the CUDA driver, with nothing but Python: a driver that lists a GPU may still fail to use
# it. Squares the numbers from 0 to 4095 and checks the result.
import ctypes
import sys

COUNT = 4096
KERNEL = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry squares(.param .u64 out)
{
  .reg .b32 %r<6>;
  .reg .b64 %d<4>;
  ld.param.u64 %d1, [out];
  cvta.to.global.u64 %d2, %d1;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  mul.lo.s32 %r5, %r4, %r4;
  mul.wide.u32 %d3, %r4, 4;
  add.s64 %d2, %d2, %d3;
  st.global.u32 [%d2], %r5;
  ret;
}
\0"""


def fail(text):
    print(text)
    sys.exit(3)


try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    fail(f"there is no CUDA driver: {error}")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        cuda.cuGetErrorName(code, ctypes.byref(text))
        fail(f"{name} fails with {code} {(text.value or b'').decode()}")


def compute(device):
    context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    memory = ctypes.c_uint64()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), KERNEL)
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"squares")
    result = (ctypes.c_uint32 * COUNT)()
    size = ctypes.c_size_t(ctypes.sizeof(result))
    call("cuMemAlloc_v2", ctypes.byref(memory), size)
    call("cuMemcpyHtoD_v2", memory, result, size)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
    call("cuLaunchKernel", kernel, COUNT // 256, 1, 1, 256, 1, 1, 0, None, arguments, None)
    call("cuCtxSynchronize")
    call("cuMemcpyDtoH_v2", result, memory, size)
    call("cuMemFree_v2", memory)
    if any(result[i] != i * i for i in range(COUNT)):
        fail("it computes wrong results")


call("cuInit", 0)
count = ctypes.c_int()
call("cuDeviceGetCount", ctypes.byref(count))
if not count.value:
    fail("there is no GPU")
for number in range(count.value):
    device, name = ctypes.c_int(), ctypes.create_string_buffer(100)
    call("cuDeviceGet", ctypes.byref(device), number)
    call("cuDeviceGetName", name, len(name), device)
    compute(device)
    print(f"GPU {number}: {name.value.decode()} computes")
