//! Standard input and output as a transport.

use rmcp::ServiceExt;
use sandbox::{Error, Result};
use std::os::fd::AsFd;

use super::adapter::Adapter;
use crate::exit::Exit;

pub async fn serve(adapter: Adapter) -> Result<Exit> {
    let failed = |cause| Error::internal("standard input and output cannot be used").with_cause(cause);
    let input = std::io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let output = std::io::stdout().as_fd().try_clone_to_owned().map_err(failed)?;
    let transport = (tokio::fs::File::from_std(input.into()), tokio::fs::File::from_std(output.into()));
    let serving = adapter
        .serve(transport)
        .await
        .map_err(|cause| Error::internal("the client did not begin as it must").with_cause(cause))?;
    serving.waiting().await.map_err(|cause| Error::internal("the server broke off").with_cause(cause))?;
    Ok(Exit::SUCCESS)
}
