//! Renders conversations into prompts on the callers' threads.

use super::template::chat_template;
use super::tokenizer::ChatTokenizer;
use crate::backend::Prepare;
use crate::chat_template::{ChatTemplate, RenderError};
use crate::child_command::ChildCommand;
use crate::engine::gguf::Gguf;
use crate::failure::{InferenceError, LoadError, ModelError};
use crate::request::{Chat, ChatMessage, ModelRequest, RequestPart, Sampling};

/// More is never intended, and every stop text is searched after every token.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 1024;
/// Short, so that the test is cheap; long enough that wrong weights produce another text.
const GOLDEN_TOKENS: u32 = 8;

#[derive(Debug)]
pub(super) struct PromptBuilder {
    /// The name that callers use.
    model: String,
    template: ChatTemplate,
    words: ChatTokenizer,
    context: usize,
    golden: RequestPart,
}

impl PromptBuilder {
    /// A child process renders the template of the file, see [`chat_template`](crate::chat_template).
    pub(super) fn of(
        gguf: &Gguf,
        model: &str,
        context: usize,
        child: &ChildCommand,
    ) -> Result<Self, LoadError> {
        let wrong = |detail: String| LoadError::Wrong { path: gguf.path.clone(), detail };
        let golden = RequestPart::Prompt { tokens: Vec::new(), sampling: Sampling::default() };
        let mut prompts = PromptBuilder {
            model: model.to_owned(),
            template: chat_template(gguf, child).map_err(wrong)?,
            words: ChatTokenizer::of(gguf)?,
            context,
            golden,
        };
        let question = ChatMessage { role: "user".to_owned(), content: "Count from one to five.".to_owned() };
        let sampling = Sampling { tokens_max: Some(GOLDEN_TOKENS), ..Sampling::default() };
        prompts.golden = prompts
            .prompt(Chat { messages: vec![question], sampling })
            .map_err(|error| wrong(format!("no prompt can be built: {error}")))?;
        Ok(prompts)
    }

    fn prompt(&self, chat: Chat) -> Result<RequestPart, ModelError> {
        check(&chat.sampling)?;
        if chat.messages.is_empty() {
            return Err(ModelError::Input("the request has no messages".to_owned()));
        }
        let text = self.template.render(&chat.messages).map_err(|error| self.render_error(error))?;
        let least = self.words.at_least(text.len());
        if least >= self.context {
            return Err(self.too_long(&format!("more than {least}")));
        }
        let tokens = self.words.cut(&text).map_err(ModelError::Input)?;
        if tokens.is_empty() {
            return Err(ModelError::Input("the messages produce an empty prompt".to_owned()));
        }
        if tokens.len() >= self.context {
            return Err(self.too_long(&tokens.len().to_string()));
        }
        Ok(RequestPart::Prompt { tokens, sampling: chat.sampling })
    }

    fn render_error(&self, error: RenderError) -> ModelError {
        match error {
            RenderError::Refused(reason) => ModelError::Input(reason),
            RenderError::Unavailable(reason) => {
                ModelError::Failed { model: self.model.clone(), failure: InferenceError::Engine(reason) }
            }
        }
    }

    fn too_long(&self, tokens: &str) -> ModelError {
        ModelError::Input(format!(
            "the messages have {tokens} tokens; {} fit with space for an answer",
            self.context - 1
        ))
    }
}

impl Prepare for PromptBuilder {
    fn prepare(&self, request: ModelRequest) -> Result<Vec<RequestPart>, ModelError> {
        match request {
            ModelRequest::TextToText(chat) => Ok(vec![self.prompt(chat)?]),
            ModelRequest::TextEmbedding { .. }
            | ModelRequest::Vision(_)
            | ModelRequest::ImageEmbedding { .. }
            | ModelRequest::TextToImage(_) => {
                Err(ModelError::Input(format!("a chat model got a request for {}", request.capability())))
            }
        }
    }

    fn golden(&self) -> RequestPart {
        self.golden.clone()
    }
}

fn check(sampling: &Sampling) -> Result<(), ModelError> {
    let stops = &sampling.stop;
    let checks = [
        (
            sampling.temperature.is_finite() && sampling.temperature >= 0.0,
            "temperature has to be 0 or more".to_owned(),
        ),
        (sampling.top_p > 0.0 && sampling.top_p <= 1.0, "top_p has to be above 0 and at most 1".to_owned()),
        (
            sampling.repeat_penalty.is_finite() && sampling.repeat_penalty > 0.0,
            "repeat_penalty has to be above 0; 1 means none".to_owned(),
        ),
        (sampling.top_k != Some(0), "top_k has to be 1 or more".to_owned()),
        (
            stops.len() <= STOPS_MAX && stops.iter().all(|stop| stop.len() <= STOP_BYTES_MAX),
            format!("at most {STOPS_MAX} stop texts of {STOP_BYTES_MAX} bytes each are allowed"),
        ),
    ];
    match checks.into_iter().find(|(holds, _)| !holds) {
        Some((_, message)) => Err(ModelError::Input(message)),
        None => Ok(()),
    }
}
