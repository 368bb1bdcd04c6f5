"""The longest of the slow tests, which `make test-all` runs and CI does not: a start of a name, as pytest writes names,
and beside it the nearest that CI runs. Most are other cases of that. What CI shows of nothing else: a machine of a
cluster and a worker that are lost, teachers spread over machines, a Ray that runs already, three sites in networks of
their own whose student is that of one machine, shadow models against a training, all rows of DistilDP's and of
PrivDistil's comparison, how near half of a real encoder comes to all of it. The many inputs of `tests/fuzz` are left
out, too.
"""

DPED = "tests/coordinator/run/test_run.py::"
CLUSTER = "tests/deploy/test_cluster.py::"
TOGETHER = "tests/deploy/test_together.py::test_parties_of_two_actors_take_the_same_steps_as_those_of_an_actor_each"
STREAMING = "tests/deploy/test_streaming.py::"
SITES = "tests/docs/test_sites.py::"
NOTEBOOK = "tests/docs/test_notebooks.py::test_a_notebook_runs_and_shows_what_it_is_kept_with"
SAME = f"{DPED}test_actors_party_processes_and_a_secure_sum_give_the_same_student_byte_for_byte"
ENDS = f"{DPED}test_however_the_coordinator_ends_no_process_stays"
DISTILDP = "tests/coordinator/language_models/test_distildp_compare.py::"
PRIVDISTIL = "tests/coordinator/run/test_privdistil_run.py::"
CHOSEN = "tests/coordinator/comparing/test_privdistil_comparison.py::"
PAIRS = "tests/coordinator/systems/test_nvdp_pairs.py::"
SEQUENCES = "tests/coordinator/systems/test_nvdp_sequences.py::"
FORECAST = "tests/docs/test_worked_plans.py::test_the_forecast_of_a_worked_plan_is_the_one_shown"
EXAMPLE = "tests/docs/test_examples.py::test_a_fresh_clone_has_all_that_such_a_plan_needs"
OWN = (
    "tests/docs/test_own_recipes.py::"
    "test_it_runs_and_verifies_where_it_is_installed_and_is_refused_in_words_where_it_is_not"
)
SHADOWS = "tests/coordinator/auditing/test_shadows.py::test_shadow_models_catch_a_training_without_its_noise"
DIALLED = "tests/faults/test_dialling.py::test_a_secure_sum_over_dialled_parties_is_that_over_addresses"
CLIPPED = (
    "tests/learning/private_training/test_dp_sgd.py::test_among_many_units_one_more_moves_the_sum_by_the_clip_at_most"
)
LAUNCH = "tests/deploy/test_launch.py::"
MORE = "tests/coordinator/comparing/test_classifier_comparison.py::test_more_than_the_head_is_compared_too"
TOY = "tests/coordinator/systems/test_toy_system.py::"
CORPUS = "tests/coordinator/text_models/test_corpus_numbers.py::"

PAGES = "tests/coordinator/page/test_pages_of_runs.py::test_a_page_shows_what_its_system_has_to_show"
PARTY = "tests/faults/test_party_deaths.py::test_a_node_that_is_killed_"
COORDINATOR = "tests/faults/test_coordinator_deaths.py::test_killed_"
WIRE = "tests/faults/test_wires.py::test_a_wire_"
SUM = "tests/faults/test_secure_sums.py::"

CASES = (
    (
        f"{PARTY}and_started_again_gets_its_work_again",
        "after the charge, before its text is opened",
        (
            "after it took the run's id",
            "before it keeps the plan",
            "when a training is done, before that is noted",
            "before anything is charged",
            "after the claim, before the block is on disk",
            "after the block is sent, before that is noted",
            "when it is to sign what the run cost it",
        ),
    ),
    (f"{PARTY}in_private_training_trains_again_for_free", "trained", ("charged", "answering")),
    (
        f"{COORDINATOR}when_a_stage_begins_and_again_when_it_ends",
        "aggregate",
        ("join", "provide", "distil", "evaluate", "publish"),
    ),
    (
        f"{COORDINATOR}between_blocks",
        "when a block is written, before it is noted",
        ("before a block is written", "after a block is stored"),
    ),
    (f"{COORDINATOR}twice_at_a_random_write", "after-0", ("before-0",)),
    (f"{WIRE}of_which_one_half_ends", "0-client", ("0-target", "3-client")),
    (f"{WIRE}that_swallows_everything_for_longer_than_the_deadline", "3", ("0",)),
    (f"{WIRE}that_changes_bytes_makes_no_other_student", "sealed", ("scene",)),
    (
        f"{SUM}test_a_coordinator_that_is_killed_in_a_secure_sum_goes_on_with_the_same_attempt",
        "when the survivors are stored, before any is asked to agree",
        (
            "when all have advertised",
            "when the sum could be unmasked, before it is stored",
            "when it is stored",
        ),
    ),
    (
        f"{SUM}test_a_party_that_is_killed_in_a_round_is_in_the_sum_if_its_vector_was",
        "its masked vector was charged",
        (
            "it advertised",
            "it dealt its shares",
            "it consented to the survivors",
            "it promised what it reveals",
        ),
    ),
    ("tests/faults/test_dialling.py::test_a_connection_that_is_cut_again_and_again_loses_nothing", "4000", ("1500",)),
)
"""Tests of many cases: which case CI runs, and which others it does not. The rest of them it runs, too."""

LONG = {
    f"{PRIVDISTIL}test_a_corpus_that_ray_works_through": f"{STREAMING}test_rows_are_those_of_the_local_streamer",
    f"{PRIVDISTIL}test_scores_and_weights_choose_the_same": f"{PRIVDISTIL}test_classifiers_that_may_not_leave",
    f"{SAME}[moments]": f"{SAME}[votes, hidden states and counts]",
    f"{SAME}[threshold at the coordinator]": f"{SAME}[votes, hidden states and counts]",
    f"{SAME}[private training]": f"{SAME}[votes, hidden states and counts]",
    f"{ENDS}[2]": f"{ENDS}[9]",
    f"{ENDS}[15]": f"{ENDS}[9]",
    f"{CLUSTER}test_a_run_goes_on_at_another_machine": f"{CLUSTER}test_the_same_student_comes_from_a_cluster",
    f"{CLUSTER}test_teachers_are_spread_over_the_machines": f"{CLUSTER}test_the_same_student_comes_from_a_cluster",
    f"{CLUSTER}test_parties_that_share_actors_on_a_cluster": f"{TOGETHER}[trusted-aggregator]",
    f"{CLUSTER}test_a_gpu_that_ray_was_only_told_of": f"{CLUSTER}test_a_party_gets_the_processor_for_graphics",
    "tests/deploy/test_together.py::test_sixteen_parties_give_the_same": f"{TOGETHER}[trusted-aggregator]",
    f"{TOGETHER}[secure-sum]": f"{TOGETHER}[trusted-aggregator]",
    f"{STREAMING}test_nothing_is_said_on_the_terminal": f"{STREAMING}test_rows_are_those_of_the_local_streamer",
    f"{STREAMING}test_a_ray_that_runs_already": f"{STREAMING}test_rows_are_those_of_the_local_streamer",
    f"{SITES}test_the_document_leads_four_sites_to_a_student_that_anyone_can_verify[as it stands]": (
        f"{SITES}test_the_document_leads_four_sites_to_a_student_that_anyone_can_verify[two dial]"
    ),
    f"{SITES}test_no_key_has_left_its_site[as it stands]": f"{SITES}test_no_key_has_left_its_site[two dial]",
    f"{SITES}test_the_folder_does_not_verify_under_another_federations_authority[as it stands]": (
        f"{SITES}test_the_folder_does_not_verify_under_another_federations_authority[two dial]"
    ),
    f"{SITES}test_a_stranger_gets_nothing_from_a_party_that_serves[as it stands]": (
        f"{SITES}test_a_stranger_gets_nothing_from_a_party_that_serves[two dial]"
    ),
    "tests/docs/test_tutorials.py::test_the_first_student": f"{NOTEBOOK}[first_run]",
    "tests/docs/test_tutorials.py::test_a_table_becomes_a_classifier": f"{NOTEBOOK}[own_table]",
    "tests/docs/test_wheel.py::test_a_plan_runs_to_its_end_there[by_pipx]": (
        "tests/docs/test_wheel.py::test_a_plan_runs_to_its_end_there[installed]"
    ),
    **{
        f"{EXAMPLE}[{name}]": f"{EXAMPLE}[swing-docstrings]"
        for name in (
            "classifier-docstrings",
            "distildp-docstrings",
            "dped-demo",
            "nvdp-docstrings",
            "privdistil-docstrings",
        )
    },
    f"{FORECAST}[nvdp]": f"{FORECAST}[classifiers]",
    f"{FORECAST}[privdistil]": f"{FORECAST}[classifiers]",
    f"{OWN}[trusted-aggregator]": f"{OWN}[secure-sum]",
    DISTILDP: "tests/coordinator/language_models/test_swing_compare.py::test_every_row_is_measured",
    CHOSEN: "tests/coordinator/comparing/test_classifier_comparison.py::test_every_private_cell_costs_no_more",
    f"{PAIRS}test_a_comparison_over_pairs_has_all_rows[changes1]": (
        f"{PAIRS}test_a_comparison_over_pairs_has_all_rows[changes0]"
    ),
    **{
        f"{SEQUENCES}test_the_folders_script_samples_and_says_as_the_head_does[changes{number}]": (
            f"{SEQUENCES}test_the_folders_script_samples_and_says_as_the_head_does[changes0]"
        )
        for number in (1, 2, 3, 4)
    },
    f"{SEQUENCES}test_whoever_follows_the_rows_card_trains_a_head_with_nothing_of_this_project[changes1]": (
        f"{SEQUENCES}test_whoever_follows_the_rows_card_trains_a_head_with_nothing_of_this_project[changes0]"
    ),
    **{
        f"{SEQUENCES}test_the_script_has_the_layers_own_means[{kind}]": (
            f"{SEQUENCES}test_the_script_has_the_layers_own_means[nvib]"
        )
        for kind in ("vtdp", "vib-fixed", "vib-learned")
    },
    **{f"{MORE}[{adapt}]": f"{MORE}[lora]" for adapt in ("lora-all", "full")},
    f"{LAUNCH}test_parties_that_were_begun_in_advance": f"{LAUNCH}test_parties_answer_in_the_order_asked",
    f"{SEQUENCES}test_a_run_of_real": "tests/coordinator/systems/test_nvdp.py::test_a_run_of_real_parties",
    f"{PAIRS}test_a_run_of_real_parties": "tests/coordinator/systems/test_nvdp.py::test_a_run_of_real_parties",
    "tests/coordinator/systems/test_nvdp.py::test_a_comparison_has_the_rows": (
        f"{PAIRS}test_a_comparison_over_pairs_has_all_rows[changes0]"
    ),
    f"{STREAMING}test_a_worker_that_dies": f"{STREAMING}test_rows_are_those_of_the_local_streamer",
    f"{STREAMING}test_what_the_work_cannot_do": f"{STREAMING}test_rows_are_those_of_the_local_streamer",
    **{
        f"{LAUNCH}test_nothing_is_left_when_the_coordinator_ends[{begun}-{signal}]": (
            f"{LAUNCH}test_nothing_is_left_when_the_coordinator_ends[launched-9]"
        )
        for begun in ("begun", "begun and launched", "launched")
        for signal in (2, 15, 9)
        if (begun, signal) != ("launched", 9)
    },
    f"{TOY}test_parties_in_processes_of_their_own_run_it": f"{TOY}test_another_process_finds_it",
    f"{CORPUS}test_a_corpus_twenty_times_larger": f"{CORPUS}test_a_corpus_larger_than_the_room_for_it",
    f"{CLIPPED}[all in one direction-1048576]": f"{CLIPPED}[all in one direction-65537]",
    f"{SHADOWS}[1.0-0.36-0.6]": "tests/learning/audits/test_membership.py::test_a_model_that_overfits",
    f"{DIALLED}[all dial]": f"{DIALLED}[two dial]",
    f"{CLIPPED}[random-1048576]": f"{CLIPPED}[random-65537]",
    f"{LAUNCH}test_a_party_that_cannot_start": "tests/docs/test_own_recipes.py::test_a_party_that_cannot_start",
    "tests/docs/test_own_recipes.py::test_the_commands_of_the_page": f"{OWN}[secure-sum]",
    "tests/coordinator/run/test_mending.py::test_parties_that_a_run_starts_by_itself_join": (
        "tests/coordinator/run/test_mending.py::test_a_label_map_that_fits_no_row_is_mended"
    ),
    f"{PAIRS}test_the_folders_script_says_what_the_rule_says_in_either_order_of_the_texts[scores]": (
        f"{PAIRS}test_the_folders_script_says_what_the_rule_says_in_either_order_of_the_texts[classes]"
    ),
    f"{SHADOWS}[0.0-0.62-1.0]": "tests/learning/audits/test_membership.py::test_a_model_that_overfits",
    "tests/deploy/test_three_sites.py::test_the_same_plan_gives_the_same_student": (
        f"{SITES}test_the_document_leads_four_sites_to_a_student_that_anyone_can_verify[two dial]"
    ),
    f"{NOTEBOOK}[synthetic_text]": (
        "tests/docs/test_commands.py::test_a_block_of_a_page_does_what_it_says[examples/distildp/README.md:13]"
    ),
    f"{NOTEBOOK}[comparing_methods]": f"{NOTEBOOK}[own_table]",
    "tests/learning/transformers/test_distilling.py::test_half_of_the_packaged_encoder": (
        "tests/learning/transformers/test_distilling.py::test_the_same_seed_gives_the_same_student"
    ),
    **{f"{PAGES}[{name}]": f"{PAGES}[dped-votes]" for name in ("nvdp-pairs", "pate", "swing-published")},
    **{f"{name}[{case}]": f"{name}[{kept}]" for name, kept, cases in CASES for case in cases},
}
