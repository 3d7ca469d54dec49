// The part of the Python module that holds memory: compute threads, matrices, KV caches; and the
// types of tensors.
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>

#include "bindings.h"
#include "machine_limits.h"
#include "program.h"

namespace heddle {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

KvType kv_type(const std::string& name) {
    if (name == "f16") return KvType::kF16;
    if (name == "q8_0") return KvType::kQ8_0;
    if (name == "q4") return KvType::kQ4;
    throw std::invalid_argument("no KV cache is of type " + name);
}

void check_page_size(const KvCache& kv, size_t bytes) {
    if (bytes != static_cast<size_t>(kv.page_bytes())) {
        throw std::invalid_argument("a page has " + std::to_string(kv.page_bytes()) + " bytes");
    }
}

void check_state_size(const FixedStates& states, size_t bytes) {
    if (bytes != static_cast<size_t>(states.bytes())) {
        throw std::invalid_argument("a state has " + std::to_string(states.bytes()) + " bytes");
    }
}

// The format of a tensor that has `bytes` bytes.
Format checked_format(int type, int64_t bytes, int rows, int columns) {
    const Format format = format_of(type);
    if (rows < 1 || columns < 1 || bytes != rows * row_bytes(format, columns)) {
        throw std::invalid_argument("tensor data does not have the size of its shape");
    }
    return format;
}

// The bytes of an open file from `offset` on.
struct FileBytes {
    int file;
    int64_t offset;
    int64_t size;
};

using Raw = std::variant<FileBytes, Bytes>;

int64_t size_of(const Raw& raw) {
    const auto* file = std::get_if<FileBytes>(&raw);
    return file ? file->size : static_cast<int64_t>(std::get<Bytes>(raw).size());
}

TensorBytes bytes_of(const Raw& raw) {
    const auto* file = std::get_if<FileBytes>(&raw);
    return file ? TensorBytes(file->file, file->offset) : TensorBytes(std::get<Bytes>(raw).data());
}

}  // namespace

void bind_storage(nb::module_& m) {
    nb::class_<Runtime>(m, "Runtime", "Compute threads (the caller included) and their kernels.")
        .def(nb::init<int, const std::string&, const std::vector<int>&>(), nb::arg("threads"),
             nb::arg("isa"), nb::arg("processors") = nb::make_tuple())
        .def_prop_ro("isa", [](const Runtime& r) { return r.kernels.name; })
        .def_prop_ro("threads", [](const Runtime& r) { return r.pool.threads(); })
        .def_prop_ro("multiplication", [](const Runtime& r) { return r.kernels.multiplication; })
        .def(
            "read_rate",
            [](Runtime& r, int64_t bytes, double seconds) {
                if (bytes < 1) throw std::invalid_argument("a buffer has at least one byte");
                return read_rate(r.pool, bytes, seconds);
            },
            nb::arg("bytes"), nb::arg("seconds"), nb::call_guard<nb::gil_scoped_release>())
        .def(
            "multiply_rate",
            [](Runtime& r, double seconds) { return multiply_rate(r.pool, r.kernels, seconds); },
            nb::arg("seconds"), nb::call_guard<nb::gil_scoped_release>())
        .def(
            "barrier_seconds", [](Runtime& r) { return barrier_seconds(r.pool, r.kernels); },
            nb::call_guard<nb::gil_scoped_release>());
    nb::class_<Arena>(m, "Arena", "Memory that packed matrices live in.")
        .def(nb::init<>())
        .def_prop_ro("allocated", &Arena::allocated, "Bytes handed out.");
    nb::class_<FileBytes>(m, "FileBytes", "Bytes of an open file, by its descriptor.")
        .def(nb::init<int, int64_t, int64_t>(), nb::arg("file"), nb::arg("offset"),
             nb::arg("size"));
    nb::class_<Matrix>(m, "Matrix", "A matrix (rows, columns) packed from its file bytes.")
        .def(
            "__init__",
            [](Matrix* self, Arena& arena, Runtime& runtime, int type, const Raw& raw, int rows,
               int columns, Floats bias, std::optional<int> stored) {
                std::vector<float> values = vector_of(bias);
                const Format from =
                    checked_format(stored.value_or(type), size_of(raw), rows, columns);
                const Format format = format_of(type);
                const TensorBytes bytes = bytes_of(raw);
                nb::gil_scoped_release release;
                new (self) Matrix(arena, runtime.pool, runtime.kernels, format, bytes, rows,
                                  columns, std::move(values), from);
            },
            nb::arg("arena"), nb::arg("runtime"), nb::arg("type"), nb::arg("raw"), nb::arg("rows"),
            nb::arg("columns"), nb::arg("bias"), nb::arg("stored") = nb::none(),
            nb::keep_alive<1, 2>(),
            "RuntimeError: the file ends before the matrix does, or cannot be read.")
        .def_prop_ro("bytes", &Matrix::bytes)
        .def_prop_ro("non_finite_row", &Matrix::non_finite_row)
        .def_prop_ro("quantised",
                     [](const Matrix& matrix) { return is_quantised(matrix.packed().format); });
    nb::class_<KvCache>(m, "KvCache", "Pages of keys and values of one type: f16, q8_0 or q4.")
        .def(
            "__init__",
            [](KvCache* self, const std::string& type, int layers, int kv_heads, int head_dim,
               int64_t pages, bool has_values) {
                if (layers < 0 || kv_heads < 1 || head_dim < 1 || pages < 1 || pages > INT32_MAX) {
                    throw std::invalid_argument("a KV cache needs positive sizes");
                }
                new (self) KvCache(kv_type(type), layers, kv_heads, head_dim, pages, has_values);
            },
            nb::arg("type"), nb::arg("layers"), nb::arg("kv_heads"), nb::arg("head_dim"),
            nb::arg("pages"), nb::arg("has_values") = true)
        .def_static(
            "bytes_of_page",
            [](const std::string& type, int layers, int kv_heads, int head_dim, bool has_values) {
                return KvCache::page_bytes(kv_type(type), layers, kv_heads, head_dim, has_values);
            },
            nb::arg("type"), nb::arg("layers"), nb::arg("kv_heads"), nb::arg("head_dim"),
            nb::arg("has_values") = true)
        .def("copy", &KvCache::copy, nb::arg("source"), nb::arg("target"),
             nb::call_guard<nb::gil_scoped_release>(), "Copy a page to another page.")
        .def(
            "read",
            [](KvCache& kv, int64_t page, const MutableBytes& bytes) {
                check_page_size(kv, bytes.size());
                nb::gil_scoped_release release;  // `bytes` holds its buffer
                kv.read(page, bytes.data());
            },
            nb::arg("page"), nb::arg("bytes"), "Copies a page's bytes out.")
        .def(
            "write",
            [](KvCache& kv, int64_t page, const Bytes& bytes) {
                check_page_size(kv, bytes.size());
                nb::gil_scoped_release release;
                kv.write(page, bytes.data());
            },
            nb::arg("page"), nb::arg("bytes"), "Copy `bytes`, as `read` gave them, into a page.")
        .def_prop_ro("pages", &KvCache::pages)
        .def_prop_ro("page_bytes", [](const KvCache& kv) { return kv.page_bytes(); });
    nb::class_<FixedStates>(m, "FixedStates", "States of recurrent layers, `bytes` each.")
        .def(nb::init<int64_t, int64_t>(), nb::arg("count"), nb::arg("bytes"))
        .def("clear", &FixedStates::clear, nb::arg("state"),
             nb::call_guard<nb::gil_scoped_release>())
        .def("copy", &FixedStates::copy, nb::arg("source"), nb::arg("target"),
             nb::call_guard<nb::gil_scoped_release>())
        .def(
            "read",
            [](FixedStates& states, int64_t state, const MutableBytes& bytes) {
                check_state_size(states, bytes.size());
                nb::gil_scoped_release release;
                states.read(state, bytes.data());
            },
            nb::arg("state"), nb::arg("bytes"))
        .def(
            "write",
            [](FixedStates& states, int64_t state, const Bytes& bytes) {
                check_state_size(states, bytes.size());
                nb::gil_scoped_release release;
                states.write(state, bytes.data());
            },
            nb::arg("state"), nb::arg("bytes"));
    m.def(
        "tensor_types",
        [] {
            nb::list types;
            for (const FormatRow& row : kFormats) {
                types.append(nb::make_tuple(
                    row.name, static_cast<int>(row.format), row.layout.columns(), row.file_bytes,
                    is_quantised(row.format) ? row.layout.super_block() : row.file_bytes,
                    is_quantised(row.format)));
            }
            return types;
        },
        "The tensor types that matmuls read: name, GGUF number, values of a block, its bytes in a "
        "file and in memory, and whether activations are quantised for it.");
    m.def("has_encoder", &has_encoder, nb::arg("file_type"),
          "Whether floats can be quantised to this GGUF tensor type.");
    m.def(
        "quantise",
        [](Runtime& runtime, int type, const Raw& raw, int stored, int rows, int columns,
           Floats importance) {
            const Format from = checked_format(stored, size_of(raw), rows, columns);
            const Format format = format_of(type);
            if (importance.size() != 0 && static_cast<int>(importance.size()) != columns) {
                throw std::invalid_argument("importance is (columns,)");
            }
            const auto bytes = static_cast<size_t>(rows * row_bytes(format, columns));
            auto* out = new uint8_t[bytes];
            nb::capsule owner(out, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
            int non_finite;
            {
                nb::gil_scoped_release release;
                non_finite =
                    quantise_rows(runtime.pool, runtime.kernels, format, from, bytes_of(raw), rows,
                                  columns, importance.size() ? importance.data() : nullptr, out);
            }
            using FileRows = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;
            return nb::make_tuple(FileRows(out, {bytes}, owner), non_finite);
        },
        nb::arg("runtime"), nb::arg("type"), nb::arg("raw"), nb::arg("stored"), nb::arg("rows"),
        nb::arg("columns"), nb::arg("importance"),
        "Quantise floats of type `stored`. Returns file bytes, and a row that is not finite or "
        "-1.");
    m.def("has_kernel", &has_kernel, nb::arg("file_type"),
          "Whether matmuls read this GGUF tensor type.");
}

}  // namespace heddle
