// The Python module heddle._native. Shapes and indices are checked in its files or in Program;
// errors are ValueError.
#include "bindings.h"

#include <stdexcept>

namespace heddle {

std::vector<const Kernels*> levels() {
    std::vector<const Kernels*> found;
    for (const Kernels* k : {amx_kernels(), avx512_kernels(), avxvnni_kernels(), avx2_kernels(),
                             i8mm_kernels(), neon_kernels(), portable_kernels()}) {
        if (k && supported(k)) found.push_back(k);
    }
    return found;
}

const Kernels& level(const std::string& name) {
    for (const Kernels* k : levels()) {
        if ((name == "auto" || name == k->name) && enable(k)) return *k;
    }
    throw std::invalid_argument("this machine cannot run instruction level " + name);
}

}  // namespace heddle

using namespace heddle;

NB_MODULE(_native, m) {
    m.doc() = "Heddle's native core.";
    m.def(
        "isa_levels",
        [] {
            std::vector<std::string> names;
            for (const Kernels* k : levels()) names.emplace_back(k->name);
            return names;
        },
        "Instruction levels this machine can run, fastest first.");
    m.def(
        "uniform",
        [](uint64_t seed, uint32_t index, uint32_t stream) { return uniform(seed, index, stream); },
        nb::arg("seed"), nb::arg("index"), nb::arg("stream") = 0,
        "The random number in [0, 1) of one token; stream 1 is XTC's.");
    bind_storage(m);
    bind_sampling(m);
    bind_program(m);
}
