// Instructions of models whose hidden state is several streams (manifold-constrained
// hyper-connections: Xie et al. 2026), and of experts that token ids choose.
//
// A part of a layer reads a weighted sum of the streams. Afterwards each stream is a weighted sum
// of all streams and of the part's result. The weights depend on the token.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "instruction.h"
#include "instructions.h"
#include "row_instruction.h"

namespace heddle {

namespace {

// (n + n + n * n) weights: of the sum, of the result for each stream, and of stream j for stream k
// at j * n + k. Or only the first n.
class StreamWeights final : public RowInstruction {
  public:
    explicit StreamWeights(StreamMixing shape)
        : RowInstruction("streams", shape.out), shape_(std::move(shape)) {}
    void run_row(Program& p, int i, int) override {
        const int n = shape_.streams, all = width(p, shape_.out);
        const float* x = row(p, shape_.in, i);
        float* out = row(p, shape_.out, i);
        for (int c = 0; c < all; ++c) {
            const size_t part = c < n ? 0 : c < 2 * n ? 1 : 2;
            out[c] = x[c] * shape_.scales[part] + shape_.base[static_cast<size_t>(c)];
        }
        const int gates = std::min(all, 2 * n);
        kernels(p).exp_all(out, gates, 0.0f, -1.0f, out);
        for (int c = 0; c < gates; ++c) {
            const float gate = 1.0f / (1.0f + out[c]);
            out[c] = c < n ? gate + shape_.eps : 2.0f * gate;
        }
        if (all > gates) balance(p, out + gates, n);
    }

  private:
    // A softmax of each row; then columns and rows in turn are divided by their sums (Sinkhorn).
    void balance(const Program& p, float* m, int n) const {
        for (int j = 0; j < n; ++j) {
            float* of_row = m + j * n;
            kernels(p).exp_all(of_row, n, *std::max_element(of_row, of_row + n), 1.0f, of_row);
            divide(of_row, n, 1, 0.0f);
            for (int k = 0; k < n; ++k) of_row[k] += shape_.eps;
        }
        for (int k = 0; k < n; ++k) divide(m + k, n, n, shape_.eps);
        for (int turn = 1; turn < shape_.turns; ++turn) {
            for (int j = 0; j < n; ++j) divide(m + j * n, n, 1, shape_.eps);
            for (int k = 0; k < n; ++k) divide(m + k, n, n, shape_.eps);
        }
    }
    static void divide(float* m, int n, int stride, float eps) {
        float sum = 0.0f;
        for (int i = 0; i < n; ++i) sum += m[i * stride];
        for (int i = 0; i < n; ++i) m[i * stride] /= sum + eps;
    }
    StreamMixing shape_;
};

class Collapse final : public RowInstruction {
  public:
    Collapse(int streams, int weights, int out)
        : RowInstruction("streams", out), streams_(streams), weights_(weights), out_(out) {}
    void run_row(Program& p, int i, int) override {
        const int n = width(p, out_);
        float* out = row(p, out_, i);
        std::fill_n(out, n, 0.0f);
        for (int s = 0; s * n < width(p, streams_); ++s) {
            kernels(p).add_scaled(row(p, streams_, i) + s * n, row(p, weights_, i)[s], n, out);
        }
    }

  private:
    int streams_, weights_, out_;
};

class Expand final : public RowInstruction {
  public:
    Expand(int streams, int result, int weights, int out)
        : RowInstruction("streams", out),
          streams_(streams),
          result_(result),
          weights_(weights),
          out_(out) {}
    void run_row(Program& p, int i, int) override {
        const int n = width(p, result_), count = width(p, out_) / n;
        const float* weights = row(p, weights_, i) + count;
        for (int k = 0; k < count; ++k) {
            float* out = row(p, out_, i) + k * n;
            kernels(p).scale(row(p, result_, i), weights[k], n, out);
            for (int j = 0; j < count; ++j) {
                const float by = weights[count + j * count + k];
                kernels(p).add_scaled(row(p, streams_, i) + j * n, by, n, out);
            }
        }
    }

  private:
    int streams_, result_, weights_, out_;
};

// Keeps the values of the columns that a table lists for the token; the others get the lowest one.
class KeepListed final : public RowInstruction {
  public:
    KeepListed(int in, std::vector<int32_t> table, int listed, int out)
        : RowInstruction("route", out),
          in_(in),
          table_(std::move(table)),
          listed_(listed),
          out_(out) {}
    void run_row(Program& p, int i, int) override {
        float* out = row(p, out_, i);
        std::fill_n(out, width(p, out_), -std::numeric_limits<float>::infinity());
        const int32_t* columns = table_.data() + int64_t{step(p).ids[i]} * listed_;
        for (int c = 0; c < listed_; ++c) out[columns[c]] = row(p, in_, i)[columns[c]];
    }

  private:
    int in_;
    std::vector<int32_t> table_;
    int listed_, out_;
};

}  // namespace

InstructionPointer make_stream_weights(StreamMixing shape) {
    return std::make_unique<StreamWeights>(std::move(shape));
}

InstructionPointer make_collapse(int streams, int weights, int out) {
    return std::make_unique<Collapse>(streams, weights, out);
}

InstructionPointer make_expand(int streams, int result, int weights, int out) {
    return std::make_unique<Expand>(streams, result, weights, out);
}

InstructionPointer make_keep_listed(int in, std::vector<int32_t> table, int listed, int out) {
    return std::make_unique<KeepListed>(in, std::move(table), listed, out);
}

}  // namespace heddle
