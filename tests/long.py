"""The longest of the slow tests, which `make test-all` runs and CI does not: a start of a name, as pytest writes names,
and beside it the nearest that CI runs. Most are other cases of that. What CI shows of nothing else: a machine of a
cluster and a worker that are lost, teachers spread over machines, a Ray that runs already, shadow models against a
training, all rows of DistilDP's comparison. The many inputs of `tests/fuzz` are left out, too.
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
    f"{CHOSEN}test_pairs_are_compared": f"{CHOSEN}test_every_private_cell_costs_no_more",
    f"{CHOSEN}test_students_and_teachers_of_rows_are_fine_tuned": f"{CHOSEN}test_every_private_cell_costs_no_more",
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
            f"{LAUNCH}test_nothing_is_left_when_the_coordinator_ends[launched-{signal}]"
        )
        for begun in ("begun", "begun and launched")
        for signal in (2, 15, 9)
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
}
