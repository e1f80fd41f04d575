//! What a model can ask for.
