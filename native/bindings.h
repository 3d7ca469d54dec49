// What the files of the Python module heddle._native share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"
#include "sampler.h"
#include "thread_pool.h"

namespace heddle {

namespace nb = nanobind;

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntRows = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The instruction levels of this machine, the best one first.
std::vector<const Kernels*> levels();

// The level of this name; "auto" is the best. Throws std::invalid_argument.
const Kernels& level(const std::string& name);

// Threads and the kernels they run.
struct Runtime {
    Runtime(int threads, const std::string& isa, const std::vector<int>& processors)
        : kernels(level(isa)), pool(checked(threads, processors), processors) {}
    static int checked(int threads, const std::vector<int>& processors) {
        if (threads < 1 || threads > 1024)
            throw std::invalid_argument("threads must be in [1, 1024]");
        if (!processors.empty() && processors.size() != static_cast<size_t>(threads))
            throw std::invalid_argument("there must be one processor for each thread");
        return threads;
    }
    const Kernels& kernels;
    ThreadPool pool;
};

inline std::vector<float> vector_of(Floats array) {
    return {array.data(), array.data() + array.size()};
}

// (token, logprob, top)
inline nb::tuple pick_tuple(const Pick& pick) {
    return nb::make_tuple(pick.token, pick.logprob, pick.top);
}

// Each adds a part to the module.
void bind_storage(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_program(nb::module_& m);

}  // namespace heddle
