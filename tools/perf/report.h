// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "p2p/result.h"
#include "p2p/stats.h"
#include "row.h"

namespace p2p::perf {

struct Baseline;

/// Closes a stream that is not a standard one.
struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdout) std::fclose(file);
  }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

/// Opens a path for writing; "-" is standard output.
Result<File> open_output(const std::string& path);

/// Shows rows as they end: a table for people (on standard output, or on standard error where that carries
/// the JSON), one JSON object a row for programs, what is going on for whoever watches a terminal.
class Report {
 public:
  /// `json_path` empty: none.
  static Result<Report> open(const std::string& json_path);

  void begin(const std::string& what);
  void row(const Row& row, const Figures& figures);

  /// What the machine does without an engine.
  void baseline(const Baseline& figure);
  void failed(const std::string& what, const Error& error);

  /// Remembers a route for `finish`.
  void route(const Route& route);

  /// The same of what was lost on its way, and came back; nothing was, mostly.
  void history(const Route& route);

  /// Shows the routes that were taken and not yet shown.
  void finish();

  std::FILE* table() const { return table_; }

  /// All rows so far.
  const std::vector<std::pair<Row, Figures>>& rows() const { return rows_; }

 private:
  explicit Report(File json);
  void clear_progress();

  File json_;
  std::FILE* table_;
  bool watched_;
  std::string machine_;
  bool has_header_ = false;
  std::vector<std::pair<Row, Figures>> rows_;
  std::vector<std::string> routes_;
  std::size_t routes_shown_ = 0;
};

}  // namespace p2p::perf
