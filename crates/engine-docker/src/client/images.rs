//! Questions about images, and files of containers that do not run.

use std::collections::HashMap;
use std::time::Duration;

use bollard::auth::DockerCredentials;
use bollard::body_full;
use bollard::body_try_stream;
use bollard::container::PathStatResponse;
use bollard::errors::Error as ClientError;
use bollard::models::{ContainerConfig, CreateImageInfo, ImageInspect, ImageSummary};
use bollard::query_parameters::{
    CommitContainerOptionsBuilder, ContainerArchiveInfoOptionsBuilder, CreateImageOptionsBuilder,
    DownloadFromContainerOptionsBuilder, ListImagesOptions, ListImagesOptionsBuilder, RemoveImageOptionsBuilder,
    TagImageOptionsBuilder, UploadToContainerOptionsBuilder,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sandbox::{Error, Result};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio_util::io::{ReaderStream, StreamReader};

use super::{Daemon, Failure, plain};
use crate::{Flavour, Login};

/// How often an image is made of a container until it is one.
const COMMITS: u32 = 4;

/// Podman's answers about one image are wrong while another one is removed.
pub(crate) const LOOKS: u32 = 20;
pub(crate) const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

impl Daemon {
    pub(crate) async fn image(&self, name: &str) -> Result<Option<ImageInspect>> {
        let found = self.ask(self.docker.inspect_image(name)).await;
        self.perhaps("look at an image", found)
    }

    pub(crate) async fn images(&self) -> Result<Vec<ImageSummary>> {
        self.list_images(ListImagesOptionsBuilder::default().build()).await
    }

    /// Those with a label, written `NAME=value`.
    pub(crate) async fn images_labelled(&self, label: &str) -> Result<Vec<ImageSummary>> {
        let filters = HashMap::from([("label", vec![label])]);
        self.list_images(ListImagesOptionsBuilder::default().filters(&filters).build()).await
    }

    /// Podman looks at one after the other, and fails when one is removed meanwhile.
    async fn list_images(&self, options: ListImagesOptions) -> Result<Vec<ImageSummary>> {
        let mut looks_left = LOOKS;
        loop {
            looks_left -= 1;
            match self.ask(self.docker.list_images(Some(options.clone()))).await {
                Err(failure) if matches!(failure.status(), Some(404 | 500)) && looks_left > 0 => {
                    tokio::time::sleep(BETWEEN_LOOKS).await;
                }
                listed => return listed.map_err(|failure| self.told("list images", failure)),
            }
        }
    }

    pub(crate) async fn tag_image(&self, name: &str, repository: &str, tag: &str) -> Result<()> {
        let options = TagImageOptionsBuilder::default().repo(repository).tag(tag).build();
        let tagged = self.ask(self.docker.tag_image(name, Some(options))).await;
        tagged.map_err(|failure| self.told("name an image", failure))
    }

    /// What the daemon says while it fetches an image. Dropping it ends the pull.
    pub(crate) fn pull(
        &self,
        repository: &str,
        tag: Option<&str>,
        login: Option<DockerCredentials>,
    ) -> impl Stream<Item = std::result::Result<CreateImageInfo, Failure>> + use<> {
        let mut options = CreateImageOptionsBuilder::default().from_image(repository);
        if let Some(tag) = tag {
            options = options.tag(tag);
        }
        let said = self.patient().create_image(Some(options.build()), None, login);
        said.map(|step| step.map_err(Failure::Client))
    }

    /// Take a name from an image, and remove it when that was its last and nobody uses it. Never by force, by which Podman
    /// would remove containers too.
    pub(crate) async fn remove_image(&self, name: &str) -> Result<bool> {
        let options = RemoveImageOptionsBuilder::default().force(false).build();
        let removed = self.ask(self.docker.remove_image(name, Some(options), None)).await;
        self.perhaps("remove an image", removed).map(|removed| removed.is_some())
    }

    /// Make an image of a container's files, with these instructions of a Dockerfile, and give it a name.
    pub(crate) async fn commit(
        &self,
        container: &str,
        repository: &str,
        tag: &str,
        instructions: &[String],
    ) -> Result<String> {
        self.commit_as(container, repository, tag, instructions, ContainerConfig::default()).await
    }

    /// The same, of an image that says this of itself and not what the container does. Only Docker takes it so.
    pub(crate) async fn commit_as(
        &self,
        container: &str,
        repository: &str,
        tag: &str,
        instructions: &[String],
        settings: ContainerConfig,
    ) -> Result<String> {
        let options = CommitContainerOptionsBuilder::default()
            .container(container)
            .repo(repository)
            .tag(tag)
            .pause(false)
            .changes(&instructions.join("\n"))
            .build();
        let docker = self.patient();
        let committing = async {
            let mut tries = COMMITS;
            loop {
                tries -= 1;
                match docker.commit_container(options.clone(), settings.clone()).await {
                    Ok(committed) => return Ok(committed),
                    Err(error) if tries > 0 && lost_its_layer(&error) => {}
                    Err(error) => return Err(self.told("make an image of a sandbox", Failure::Client(error))),
                }
            }
        };
        self.unless_hanging(committing).await.map(|committed| committed.id)
    }

    /// The size of a file; `None` when nothing is there.
    pub(crate) async fn file_size(&self, container: &str, path: &str) -> Result<Option<u64>> {
        let found = self.found_at(container, path).await?;
        Ok(found.map(|found| u64::try_from(found.size).unwrap_or(0)))
    }

    /// Whether a mount at this path would be there and nowhere else: on a directory, or on nothing yet.
    pub(crate) async fn is_free_for_a_mount(&self, container: &str, path: &str) -> Result<bool> {
        match self.found_at(container, path).await? {
            Some(found) => Ok(is_directory_itself(path, &found)),
            None => Ok(!self.is_lost_link(container, path).await?),
        }
    }

    /// Podman answers that nothing is there for a link that leads nowhere, and says only in a header of that answer what it
    /// has seen. An answer that does not come is no proof that there is none.
    async fn is_lost_link(&self, container: &str, path: &str) -> Result<bool> {
        match self.flavour {
            Flavour::Docker => return Ok(false),
            Flavour::Podman => {}
        }
        let path = utf8_percent_encode(path, NON_ALPHANUMERIC);
        let target = format!("/v1.40/containers/{container}/archive?path={path}");
        let answer = plain::ask(&self.endpoint, "HEAD", &target).await;
        let unknown = || Error::unavailable("Podman does not say what an image has in a place that is not its own");
        let answer = answer.map_err(|cause| unknown().with_cause(cause))?;
        let (head, _) = plain::parts(&answer).ok_or_else(unknown)?;
        Ok(head.lines().any(|line| line.to_ascii_lowercase().starts_with("x-docker-container-path-stat:")))
    }

    async fn found_at(&self, container: &str, path: &str) -> Result<Option<PathStatResponse>> {
        let options = ContainerArchiveInfoOptionsBuilder::default().path(path).build();
        let told = self.ask(self.docker.get_container_archive_info(container, Some(options))).await;
        self.perhaps("look into a container", told)
    }

    /// A path of a container as a tar stream; names in it begin with the last part of the path.
    pub(crate) fn download(&self, container: &str, path: &str) -> Box<dyn AsyncRead + Send + Unpin> {
        let options = DownloadFromContainerOptionsBuilder::default().path(path).build();
        let pieces = Box::pin(self.patient().download_from_container(container, Some(options)));
        let pieces = stream::unfold(Some((self.clone(), pieces)), |reading| async move {
            let (daemon, mut pieces) = reading?;
            match daemon.unless_hanging(async { Ok(pieces.next().await) }).await {
                Ok(piece) => Some((piece?.map_err(std::io::Error::other), Some((daemon, pieces)))),
                Err(hangs) => Some((Err(std::io::Error::other(hangs)), None)),
            }
        });
        Box::new(StreamReader::new(Box::pin(pieces)))
    }

    /// A small file of a container; `None` when it is not there or no regular file.
    pub(crate) async fn small_file(&self, container: &str, path: &str, most: u64) -> Result<Option<Vec<u8>>> {
        if self.file_size(container, path).await?.is_none_or(|size| size > most) {
            return Ok(None);
        }
        let mut archive = Vec::new();
        // A header, the file and the end of the archive, each in blocks.
        let reading = self.download(container, path).take(most + (8 << 10)).read_to_end(&mut archive).await;
        let broken = |cause: std::io::Error| Error::unavailable("a file of an image cannot be read").with_cause(cause);
        reading.map_err(broken)?;
        let mut entries = tar::Archive::new(archive.as_slice());
        let Some(entry) = entries.entries().map_err(broken)?.next() else { return Ok(None) };
        let mut entry = entry.map_err(broken)?;
        if !entry.header().entry_type().is_file() {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut bytes).map_err(broken)?;
        Ok(Some(bytes))
    }

    pub(crate) async fn upload(&self, container: &str, path: &str, archive: Bytes) -> Result<()> {
        let options = UploadToContainerOptionsBuilder::default().path(path).build();
        self.sent(self.patient().upload_to_container(container, Some(options), body_full(archive))).await
    }

    /// The same for an archive of any size.
    pub(crate) async fn upload_stream(
        &self,
        container: &str,
        path: &str,
        archive: impl AsyncRead + Send + 'static,
    ) -> Result<()> {
        let options = UploadToContainerOptionsBuilder::default().path(path).build();
        let body = body_try_stream(ReaderStream::with_capacity(archive, 64 * 1024));
        self.sent(self.patient().upload_to_container(container, Some(options), body)).await
    }

    async fn sent(&self, sending: impl Future<Output = std::result::Result<(), ClientError>>) -> Result<()> {
        let sending = async { sending.await.map_err(|error| self.told("take files", Failure::Client(error))) };
        self.unless_hanging(sending).await
    }
}

/// Podman makes an image upon a layer with the same content where it has one. Whoever removes the last image with that layer
/// meanwhile takes it away; made once more, it has its own.
fn lost_its_layer(error: &ClientError) -> bool {
    matches!(error, ClientError::DockerResponseServerError { status_code: 500, message } if message.contains("layer not known"))
}

/// By the bits that Go has for directories and links. Podman follows links and says where it came to, of every path.
fn is_directory_itself(path: &str, found: &PathStatResponse) -> bool {
    const DIRECTORY: u32 = 1 << 31;
    const LINK: u32 = 1 << 27;
    let leads_elsewhere = !found.link_target.is_empty() && found.link_target.trim_end_matches('/') != path;
    found.file_mode & (DIRECTORY | LINK) == DIRECTORY && !leads_elsewhere
}

pub(crate) fn credentials(registry: &str, login: Login) -> DockerCredentials {
    let serveraddress = Some(registry.to_owned());
    match login {
        Login::Password { user, secret } => {
            DockerCredentials { username: Some(user), password: Some(secret), serveraddress, ..Default::default() }
        }
        Login::Identity(token) => DockerCredentials { identitytoken: Some(token), serveraddress, ..Default::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_no_directory_wherever_it_leads() {
        let found = |file_mode: u32, target: &str| PathStatResponse {
            name: ".sandpen".to_owned(),
            size: 0,
            file_mode,
            modification_time: None,
            link_target: target.to_owned(),
        };
        let (directory, link) = (1 << 31 | 0o755, 1 << 27 | 0o777);
        for plain in [found(directory, ""), found(directory, "/.sandpen")] {
            assert!(is_directory_itself("/.sandpen", &plain), "{plain:?}");
        }
        for other in
            [found(link, "/x"), found(link, ""), found(directory, "/x"), found(directory | link, ""), found(0o755, "")]
        {
            assert!(!is_directory_itself("/.sandpen", &other), "{other:?}");
        }
    }

    #[test]
    fn only_a_lost_layer_is_worth_another_try() {
        let told =
            |message: &str| ClientError::DockerResponseServerError { status_code: 500, message: message.to_owned() };
        let lost =
            "CommitFailure: copying layers: committing the finished image: creating image \"44f0\": layer not known";
        assert!(lost_its_layer(&told(lost)));
        assert!(!lost_its_layer(&told("no space left on device")));
    }
}
