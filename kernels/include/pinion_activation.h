// What is applied to a product's outputs. Plain C.
#pragma once

// GELU_TANH: Hugging Face's gelu_new and gelu_pytorch_tanh. GELU_ERF: its gelu.
enum { PINION_ACTIVATION_NONE = 0, PINION_ACTIVATION_GELU_TANH = 1, PINION_ACTIVATION_GELU_ERF = 2 };
