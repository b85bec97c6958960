// Services that keep figures of experiments, as other programs name them.
#include <fmt/format.h>

#include <algorithm>

#include "deck/import/importer.hpp"

namespace tessera {

void import_wandb(Importer& in) {
  constexpr std::string_view enabled = "wandb.enabled", project = "wandb.project", team = "wandb.team", group = "wandb.group";
  if (!in.is_true(enabled)) {
    for (const std::string_view key : {enabled, project, team, group})
      if (in.given(key)) in.note(key, "wandb is off");
    return;
  }
  const auto literal = [&](std::string_view key) { return in.given(key)->literal.str(); };
  in.put("metrics.wandb", in.given(project) ? literal(project) : "\"deepspeed\"", in.given(project) ? project : enabled);
  if (in.given(project)) in.note(enabled, "wandb.project names the destination of the figures");
  if (in.given(team)) in.put("metrics.wandb_team", literal(team), team);
  if (in.given(group)) in.put("metrics.wandb_group", literal(group), group);
}

void import_reports(Importer& in) {
  const JsonNode* node = in.given("report_to");
  if (!node) {
    if (in.given("project")) in.note("project", "report_to names no service with projects");
    return;
  }
  const auto names = [&](std::string_view word) {
    return node->is(word) || std::ranges::any_of(node->children, [&](const JsonNode& child) { return child.is(word); });
  };
  const std::string project = in.given("project") ? in.given("project")->literal.str() : "\"huggingface\"";
  bool shown = false;
  const auto put = [&](bool named, std::string_view ours, const std::string& value) {
    if (named) in.put(ours, value, "report_to"), shown = true;
  };
  put(names("tensorboard") || names("all"), "metrics.tensorboard", "true");
  put(names("wandb"), "metrics.wandb", project);
  put(names("mlflow"), "metrics.mlflow", project);
  if (names("all"))
    in.note("report_to", "\"all\" sends nothing to W&B or MLflow; name them to send the figures there");
  else if (!shown)
    in.note("report_to", "metrics.jsonl in the run's folder holds every step");
  if (in.given("project"))
    in.note("project",
            names("wandb") || names("mlflow") ? "it names the destination of the figures" : "report_to names no service with projects");
}

}  // namespace tessera
