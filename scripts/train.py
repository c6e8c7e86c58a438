r"""Train any of the five systems.

accelerate launch scripts/train.py toy --output_dir runs/toy
accelerate launch --config_file scripts/accelerate_configs/two_cpu_processes.yaml \
    scripts/train.py RECIPE [--key value ...]
"""

from hf_dualpath.training.run import main


if __name__ == "__main__":
    main()
