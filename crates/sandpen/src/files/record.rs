//! What is written down of a request about files.

/// What was wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Download,
    Archive,
    Upload,
    UploadForm,
    UploadArchive,
    UploadBegun,
    UploadPart,
    UploadAsked,
    UploadGivenUp,
    MakeDirectory,
    Delete,
    Link,
    Other,
}

impl Action {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Download => "download",
            Self::Archive => "archive",
            Self::Upload => "upload",
            Self::UploadForm => "upload_form",
            Self::UploadArchive => "upload_archive",
            Self::UploadBegun => "upload_begun",
            Self::UploadPart => "upload_part",
            Self::UploadAsked => "upload_asked",
            Self::UploadGivenUp => "upload_given_up",
            Self::MakeDirectory => "make_directory",
            Self::Delete => "delete",
            Self::Link => "link",
            Self::Other => "other",
        }
    }
}

/// How somebody got in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    Token,
    Link,
}

impl Door {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Link => "link",
        }
    }
}
