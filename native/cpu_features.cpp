#include <cstring>

#include "kernels.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace heddle {

#if !defined(HEDDLE_BUILT_AVX2)
const Kernels* avx2_kernels() { return nullptr; }
#endif
#if !defined(HEDDLE_BUILT_AVXVNNI)
const Kernels* avxvnni_kernels() { return nullptr; }
#endif
#if !defined(HEDDLE_BUILT_AVX512)
const Kernels* avx512_kernels() { return nullptr; }
#endif
#if !defined(HEDDLE_BUILT_AMX)
const Kernels* amx_kernels() { return nullptr; }
#endif
#if !defined(HEDDLE_BUILT_I8MM)
const Kernels* i8mm_kernels() { return nullptr; }
#endif
#if !defined(HEDDLE_BUILT_NEON)
const Kernels* neon_kernels() { return nullptr; }
#endif

#if defined(__x86_64__)
namespace {

// CPUID leaf 7, subleaf 1, EAX bit 4. Only new compilers know the name for __builtin_cpu_supports.
// If AVX2 is available, the operating system saves AVX registers.
bool has_avxvnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

// Calls of arch_prctl, and the state they are about (Documentation/arch/x86/xstate.rst of Linux).
[[maybe_unused]] constexpr int kGetSupported = 0x1021, kAskForPermission = 0x1023, kTileData = 18;

// CPUID leaf 7, EDX bits 24 (tiles) and 25 (int8).
bool has_amx() {
#if defined(__linux__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d >> 24 & 3) != 3) return false;
    uint64_t states = 0;
    return syscall(SYS_arch_prctl, kGetSupported, &states) == 0 && (states >> kTileData & 1);
#else
    return false;
#endif
}

}  // namespace
#elif defined(__aarch64__)
namespace {

bool has_dot_product() {
#if defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__APPLE__)
    return true;  // every processor they run macOS on has it
#else
    return false;
#endif
}

// Products of int8 matrices, smmla (FEAT_I8MM).
bool has_i8mm() {
#if defined(__linux__)
    // HWCAP2_I8MM, bit 13: headers of Linux before 5.6 lack the name.
    return (getauxval(AT_HWCAP2) >> 13 & 1) != 0;
#elif defined(__APPLE__)
    int has = 0;
    size_t bytes = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &bytes, nullptr, 0) == 0 && has != 0;
#else
    return false;
#endif
}

}  // namespace
#endif

bool supported(const Kernels* kernels) {
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c");
    if (std::strcmp(kernels->name, "avx2") == 0) return avx2;
    if (std::strcmp(kernels->name, "avxvnni") == 0) return avx2 && has_avxvnni();
    if (std::strcmp(kernels->name, "emulated") == 0) return avx2;
    if (std::strcmp(kernels->name, "avx512") == 0) return avx2 && has_avx512();
    if (std::strcmp(kernels->name, "amx") == 0) return avx2 && has_avx512() && has_amx();
#elif defined(__aarch64__)
    if (std::strcmp(kernels->name, "neon") == 0) return has_dot_product();
    if (std::strcmp(kernels->name, "i8mm") == 0) return has_dot_product() && has_i8mm();
#endif
    return std::strcmp(kernels->name, "portable") == 0;
}

bool enable(const Kernels* kernels) {
#if defined(__x86_64__) && defined(__linux__)
    if (std::strcmp(kernels->name, "amx") == 0) {
        return syscall(SYS_arch_prctl, kAskForPermission, kTileData) == 0;
    }
#endif
    return kernels != nullptr;
}

}  // namespace heddle
