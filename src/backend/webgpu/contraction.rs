//! One template of matrix products for Gemm and Conv.
