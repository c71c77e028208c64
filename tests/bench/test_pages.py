"""Tables of the documents: every committed result has one, and every kind of result becomes rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture(scope="module")
def tables():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import tables
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    return tables


def test_every_committed_result_is_on_the_page(tables):
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    results = {str(file.relative_to(RESULTS)) for file in RESULTS.rglob("*.json")}
    assert results <= {section.result for section in tables.SECTIONS}
    assert all(f"benchmarks/results/{result})" in page for result in results)


def test_pages_are_made_of_what_there_is(tables, tmp_path):
    assert tables.benchmarks_page(results=tmp_path) == ""
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / "observe.json").write_text(
        '{"machine": {"gpus": [], "cores": 2}, "date": "2026-11-15", "costs":'
        ' [{"asked_ms": 1.0, "added_ms": 0.01, "share": 0.011, "targets": [{"words": "≤ 0.05 ms"}]}]}'
    )
    page = tables.benchmarks_page(results=tmp_path)
    assert "`fulltilt bench observe` on no GPU, 2 cores, 2026-11-15" in page
    assert "| steps of 1 ms | 0.010 ms, 1.10 % | ≤ 0.05 ms |" in page


def test_the_readmes_table_has_rows_of_what_there_is_alone(tables, tmp_path):
    assert len(tables.headline("en", tmp_path).splitlines()) == 2, "its head"
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / "guides.json").write_text(
        json.dumps(
            {
                "cases": [
                    {
                        "workload": "forecast",
                        "key": "before",
                        "samples_per_second": 9999.0,
                        "overall_per_second": 9000.0,
                    },
                    {
                        "workload": "forecast",
                        "key": "after",
                        "samples_per_second": 99999.0,
                        "overall_per_second": 85500.0,
                        "speed_up": 9.5,
                    },
                    {"workload": "video", "key": "before", "overall_per_second": 5.0},
                    {"workload": "video", "key": "after"},
                ]
            }
        )
    )
    source = "[guides.json](benchmarks/results/h200/guides.json)"
    (row,) = tables.headline("en", tmp_path).splitlines()[2:]
    ours = f"85,500/s | **9.5×** | {source} |"
    assert row == f"| Forecast recipe, validation included | plain loop, before the guide's advice: 9,000/s | {ours}"
    (row,) = tables.headline("zh", tmp_path).splitlines()[2:]
    ours = f"85,500 样本/秒 | **9.5×** | {source} |"
    assert row == f"| 预测任务（含验证） | 普通循环，优化前的设置：9,000 样本/秒 | {ours}"


def test_commands_as_rows(tables):
    known = {"name": "mnist", "command": "main.py", "attributed": 0.986, "before": 1000.0, "after": 1500.0,
             "times": 1.5, "max_seconds": 180.0, "problem": None, "verdict": "No headroom.",
             "limit": 2000.0, "remaining": "at 75 % of the limit: copies",
             "settings": {"loader.num_workers": 8}, "tried": {"8 workers": "+40 %"}}  # fmt: skip
    failed = dict.fromkeys(known) | {
        "name": "timm", "command": "train.py", "max_seconds": 90.0, "problem": "run ended with status 1: no",
    }  # fmt: skip
    assert tables.rows.commands_rows({"cases": [known, failed]}) == [
        ("mnist: `main.py`", "98.6 %", "1,000/s", "1,500/s", "2,000/s", "1.50×", "1.40×", "180 s", "No headroom.",
         "at 75 % of the limit: copies"),
        ("timm: `train.py`", "", "", "", "", "", "", "90 s", "run ended with status 1: no", ""),
    ]  # fmt: skip


def test_quality_as_rows(tables):
    case = {"workload": "forecast", "metric_name": "val_r2"}
    before = case | {"key": "before", "batch_size": 32, "steps": 1150}
    after = case | {"key": "after", "batch_size": 96, "steps": 383}
    cases = [before | {"metric": 0.9239}, after | {"metric": 0.9176}, before | {"metric": 0.93}]
    assert tables.rows.quality_rows({"cases": cases}) == [
        ("forecast: before", "32", "1,150", "0.924, 0.930"), ("forecast: after", "96", "383", "0.918"),
    ]  # fmt: skip
    unchanged = case | {"key": "the last reading", "metric": 0.6077}
    assert tables.rows.quality_rows({"cases": [unchanged]}, "forecast") == [("the last reading", "", "", "0.608")]


def test_a_page_with_lost_marks_is_refused(tables):
    with pytest.raises(ValueError, match="figures:begin"):
        tables.replaced("no marks", "")


def test_guides_as_rows(tables):
    targets = [
        {"figure": "gpu_util", "words": "GPU ≥ 92 %", "at_least": 92.0, "found": 95.0, "met": True},
        {"figure": "share", "words": "of the limit ≥ 90 %", "at_least": 0.9, "found": 0.85, "met": False},
        {"figure": "speed_up", "words": "against before ≥ 3×", "at_least": 3.0},
    ]
    result = {
        "workloads": {
            "segmentation": {
                "title": "cells", "claim": {"guides": "002", "speed": "1.2×", "utilisation": "65 → 92 %"},
            }
        },
        "cases": [
            {"workload": "segmentation", "key": "before", "title": "before", "samples_per_second": 200.0},
            {"workload": "segmentation", "key": "after", "title": "after", "samples_per_second": 1700.0,
             "speed_up": 3.5, "share": 0.85, "gpu_util": 95.2, "gpu_util_std": 1.8, "wait_share": 0.02,
             "peak_memory_bytes": 3 * 2**30, "metric": 0.8123, "targets": targets},
            {"workload": "segmentation", "key": "accelerate", "title": "Accelerate", "samples_per_second": 300.0,
             "another_run": True},
            {"workload": "segmentation", "key": "lightning", "title": "Lightning", "problem": "not installed"},
        ],
    }  # fmt: skip
    rows = tables.rows.guides_rows(result)
    assert all(len(row) == len(tables.rows.GUIDE_COLUMNS) for row in rows)
    before, after, elsewhere, absent, claim, wanted = rows
    assert elsewhere[:2] == ("segmentation: Accelerate (another run)", "300/s")
    assert before == ("segmentation: before", "200/s", "", "", "", "", "", "")
    assert after == ("**segmentation: after**", "1,700/s", "3.50×", "85.0 %", "95 ± 2 %", "2 %", "3.0 GiB", "0.812")
    assert absent[1] == "not installed"
    assert claim[2] == "1.2×"
    outcomes = ("1 of 3 targets met", "missed: of the limit ≥ 90 %", "not measured: against before ≥ 3×")
    assert wanted[0] == f"*segmentation: {'; '.join(outcomes)}*"


def test_claims_beside_what_was_measured(tables, tmp_path):
    assert tables.claims(tmp_path) == ""
    before = {"gpu_util": 22.4, "gpu_util_std": 5.2, "wait_share": 0.5, "batch_size": 64, "samples_per_second": 640.0}
    after = {"gpu_util": 99.6, "gpu_util_std": 0.6, "wait_share": 1e-6, "batch_size": 128, "samples_per_second": 6400.0}
    names = ("segmentation", "classification", "forecast", "video")
    results = {
        "guides": {
            "workloads": dict.fromkeys(names),
            "cases": [
                {"workload": name, "key": key, **case, "speed_up": 16.9}
                for name in names
                for key, case in (("before", before), ("after", after))
            ],
        },
        "augment": {
            "peers": [{"name": f"CPU, {count} workers", "wall_ms": 400 / count} for count in (4, 8, 16)],
            "cases": [{"key": "task", "wall_ms": 0.0601}],
        },
        "assist": {"cases": [{"key": "beside", "share": 0.991}]},
    }
    (tmp_path / "h200").mkdir()
    for name, result in results.items():
        (tmp_path / "h200" / f"{name}.json").write_text(json.dumps(result))
    said = tables.claims(tmp_path)
    assert "| classification 16.9×, GPU 22 ± 5 % → 100 ± 1 % |" in said
    assert "| waits for a batch: 50 ms → less than 0.01 ms |" in said
    assert "| 100, 50, 25 ms with 4, 8 and 16 workers that augment on the CPU → 0.060 ms |" in said
    assert "99.1 % of its speed" in said
    results["guides"]["cases"] = [{"workload": "video", "key": "after", "gpu_util": 90.0, "gpu_util_std": 1.0}]
    (tmp_path / "h200" / "guides.json").write_text(json.dumps(results["guides"]))
    assert "| video not measured, GPU not measured → 90 ± 1 % |" in tables.claims(tmp_path)
    for name, result in results.items():  # workloads, peers and cases that are missing altogether
        bare = {key: type(value)() for key, value in result.items()}
        (tmp_path / "h200" / f"{name}.json").write_text(json.dumps(bare))
    said = tables.claims(tmp_path)
    assert "| video not measured, GPU not measured |" in said
    assert "| not measured, not measured, not measured ms with 4" in said


def test_curves_as_rows(tables):
    cases = [
        {"part": "cores", "series": "limit", "x": 4, "samples_per_second": 6000.0},
        {"part": "cores", "series": "gpu", "x": 4, "samples_per_second": 5900.0},
        {"part": "batch", "series": "limit", "x": 8, "problem": "out of memory"},
    ]
    assert tables.rows.scaling_workloads({"workloads": {"cores": "a", "batch": "b", "size": "c"}}) == (
        "cores: a; batch size: b; image size: c."
    )
    rows = tables.rows.scaling_rows({"cases": cases})
    assert rows == [("cores 4", "6,000", "", "5,900", ""), ("batch size 8", "–", "", "", "")]


def test_the_other_results_as_rows(tables):
    cpu = {"figure": "frames_per_second", "words": "≥ 3,000/s"}
    video = {"cases": [
        {"part": "cpu", "title": "CPU", "frames_per_second": 3500.0, "targets": [cpu | {"met": True}]},
        {"part": "cpu", "title": "slow", "frames_per_second": 2500.0, "targets": [cpu | {"met": False}]},
        {"part": "clips", "title": "clips", "clips_per_second": 90.0, "times": 3.4,
         "targets": [{"words": "≥ 3×", "met": True}], "times_loader_jumps": 3.4, "times_loader_alone": 2.1},
        {"part": "nvdec", "title": "NVDEC", "problem": "no GPU"},
    ]}  # fmt: skip
    assert tables.rows.video_rows(video) == [
        ("CPU", "3,500 frames/s", "", "≥ 3,000/s"),
        ("slow", "2,500 frames/s", "", "≥ 3,000/s, missed"),
        ("clips", "90 clips/s", "3.40×, 2.10× the fastest DataLoader", "≥ 3×"),
        ("NVDEC", "", "no GPU", ""),
    ]
    scripts = {
        "cases": [{"script": "a", "before": 100.0, "after": 250.0, "limit": None, "targets": [{"words": "≥ 2×"}]}]
    }
    assert tables.rows.scripts_rows(scripts) == [("a", "100/s", "250/s", "", "2.50×", "≥ 2×", "")]
    beside = {"title": "beside", "samples_per_second": 99.0, "share": 0.99, "targets": [{"words": "≥ 98 %"}]}
    assist = {
        "workload": "U-Net", "cases": [beside],
        "tasks": {"tasks_per_second": 120000, "concurrent_futures_tasks_per_second": 90000},
        "balance": {
            "before": {"cores": 8, "samples_per_second": 4000.0, "gpu_share": 0.0},
            "taken": {"cores": 4, "samples_per_second": 3600.0, "gpu_share": 0.5},
            "back": {"cores": 8, "samples_per_second": 3900.0, "gpu_share": 0.06},
            "fixed": {"0": 2000.0, "0.75": 3700.0},
            "targets": [{"figure": "taken", "words": "≥ 95 % of it"}, {"figure": "back", "words": "≥ 96 %"}],
        },
    }  # fmt: skip
    assert tables.rows.assist_rows(assist) == [
        ("U-Net: beside", "99/s", "99.0 %", "≥ 98 %"),
        ("trivial tasks through the queue", "120,000/s", "concurrent.futures 90,000/s", ""),
        ("ResNet-50 from image files, 8 cores: 0 % by the GPU", "4,000/s", "", ""),
        (
            "ResNet-50 from image files, 4 cores when half are taken away: 50 % by the GPU",
            "3,600/s",
            "97.3 % of the best fixed share",
            "≥ 95 % of it",
        ),
        (
            "ResNet-50 from image files, 8 cores when they are back: 6 % by the GPU",
            "3,900/s",
            "97.5 % of before",
            "≥ 96 %",
        ),
    ]


def test_a_case_that_failed_is_no_headline(tables, tmp_path):
    (tmp_path / "h200").mkdir()
    file = tmp_path / "h200" / "guides.json"
    before = {"workload": "video", "key": "before", "overall_per_second": 3.0}
    after = {"workload": "video", "key": "after", "overall_per_second": 30.0, "speed_up": 10.0}
    file.write_text(json.dumps({"cases": [before, after]}))
    assert "**10.0×**" in tables.headline("en", tmp_path)
    file.write_text(json.dumps({"cases": [before, after | {"problem": "stopped after 420 s"}]}))
    assert "Video" not in tables.headline("en", tmp_path)
    commands = {"cases": [{"name": "timm", "before": None, "after": None, "times": None}]}
    (tmp_path / "h200" / "commands.json").write_text(json.dumps(commands))
    assert "timm" not in tables.headline("en", tmp_path), "nor does it stop the others"


def test_a_command_is_as_much_faster_as_it_was_side_by_side(tables, tmp_path):
    (tmp_path / "h200").mkdir()
    one = {"name": "timm", "before": 700.0, "after": 2100.0, "times": 3.0, "settings": {"graphs": True}}
    file = tmp_path / "h200" / "commands.json"
    file.write_text(json.dumps({"cases": [one | {"tried": {"CUDA graphs": "+150 %"}}]}))
    (row,) = tables.headline("en", tmp_path).splitlines()[2:]
    assert "| as it is, watched first: 700 img/s | the whole run: 2,100 img/s | side by side **2.5×** |" in row
    assert "**2.5×**" in tables.headline("zh", tmp_path)


def test_a_share_is_of_the_limit_that_stands_beside_it(tables):
    row = next(row for row in tables.headline("en", RESULTS).splitlines() if "The same with 4 cores" in row)
    cases = {case["key"]: case for case in tables.read(RESULTS, "h200/feed.json")["cases"]}
    limit = cases["cores_limit"]["samples_per_second"]
    share = 100 * cases["cores_4"]["samples_per_second"] / limit
    assert f"{share:.1f} % of its run's limit, {limit:,.0f} img/s" in row


def test_figures_that_are_withheld_are_shown_nowhere_and_the_reason_is(tables):
    feed = json.loads((RESULTS / "h200" / "feed.json").read_text())
    held = next(case for case in feed["cases"] if case["key"] == "loader_tuned")
    rate = f"{held['samples_per_second']:,.0f}/s"
    assert rate in {row[1] for row in tables.rows.feed_rows(feed)}, "the file keeps it"
    shown = tables.read(RESULTS, "h200/feed.json")
    row = next(row for row in tables.rows.feed_rows(shown) if row[0] == held["title"])
    assert rate not in row
    assert "idled" in row[2]
    assert rate not in tables.feed_chart(shown)
    scaling = tables.read(RESULTS, "h200/scaling.json")
    assert all("samples_per_second" not in case for case in scaling["cases"] if case["series"] == "loader")


def test_each_recipe_has_its_own_rows(tables):
    case = {"workload": "video", "key": "after", "batch_size": 4, "steps": 10, "metric": 0.9}
    result = {"cases": [case, case | {"metric": 0.8}, case | {"workload": "forecast"}, case | {"batch_size": 12}]}
    assert tables.rows.quality_rows(result, "video") == [
        ("after", "4", "10", "0.900, 0.800"), ("after", "12", "10", "0.900"),
    ]  # fmt: skip
    assert tables.rows.quality_rows(result)[1][0] == "forecast: after"
