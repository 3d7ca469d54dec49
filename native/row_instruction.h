// The base of instructions that work on each row separately.
#pragma once

#include <algorithm>

#include "instruction.h"

namespace heddle {

class RowInstruction : public Instruction {
  public:
    RowInstruction(const char* kind, int shape) : Instruction(kind), shape_(shape) {}
    int items(const Program& p) const override {
        return (count(p) + per_item(p) - 1) / per_item(p);
    }
    void run(Program& p, int item, int thread) override {
        const int rows = per_item(p), end = std::min((item + 1) * rows, count(p));
        for (int i = item * rows; i < end; ++i) run_row(p, i, thread);
    }
    bool follows(const Program& p, const Instruction& before) const override {
        const auto* rows = dynamic_cast<const RowInstruction*>(&before);
        return rows != nullptr && rows->own_rows() && own_rows() &&
               per_row(p, rows->shape_) == per_row(p, shape_);
    }
    virtual void run_row(Program& p, int i, int thread) = 0;

  protected:
    // By default, the rows of the buffer `shape` in this pass.
    virtual int count(const Program& p) const { return rows(p, shape_); }
    // Whether it computes all rows of the pass, and row i from row i of its inputs alone.
    virtual bool own_rows() const { return true; }

  private:
    // Most rows of elementwise work in one item.
    static constexpr int kRowsPerItem = 16;

    int per_item(const Program& p) const {
        const int share = (count(p) + threads(p) - 1) / threads(p);
        return std::min(kRowsPerItem, std::max(1, share));
    }
    int shape_;
};

}  // namespace heddle
