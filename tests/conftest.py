import os

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start; two test workers share two cores

import torch

torch.set_num_threads(1)
