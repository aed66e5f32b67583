//! Names as Keras derives them.

/// The name of a class as Keras writes it in paths: `MultiHeadAttention` is `multi_head_attention`.
pub(super) fn snake_case(class: &str) -> String {
    let words: Vec<char> = class.chars().filter(|c| c.is_alphanumeric() || *c == '_').collect();
    // A capital with small letters behind it begins a word.
    let mut split = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let begins = at > 0
            && words[at].is_ascii_uppercase()
            && words.get(at + 1).is_some_and(char::is_ascii_lowercase);
        if begins {
            split.push('_');
            while at < words.len() && (split.last() == Some(&'_') || words[at].is_ascii_lowercase())
            {
                split.push(words[at]);
                at += 1;
            }
            continue;
        }
        split.push(words[at]);
        at += 1;
    }
    // So does one behind a small letter.
    let mut snake = String::new();
    let mut before = ' ';
    for c in split {
        if before.is_ascii_lowercase() && c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
        before = c;
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::snake_case;

    #[test]
    fn classes_are_written_as_keras_does() {
        for (class, name) in [
            ("Conv2D", "conv2d"),
            ("Conv2DTranspose", "conv2d_transpose"),
            ("MultiHeadAttention", "multi_head_attention"),
            ("LSTM", "lstm"),
            ("LSTMCell", "lstm_cell"),
            ("PReLU", "p_re_lu"),
            ("ReLU", "re_lu"),
            ("ELU", "elu"),
            ("LeakyReLU", "leaky_re_lu"),
            ("ConvLSTM2D", "conv_lstm2d"),
            ("SimpleRNN", "simple_rnn"),
            ("RMSNormalization", "rms_normalization"),
            ("StackedRNNCells", "stacked_rnn_cells"),
            ("GlobalAveragePooling2D", "global_average_pooling2d"),
            ("Functional", "functional"),
        ] {
            assert_eq!(snake_case(class), name);
        }
    }
}
