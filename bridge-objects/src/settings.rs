//! Address of the store and timing of requests.

use std::time::Duration;

use bridge_core::checkpoint::ManagerError;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path as ObjectPath;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};

use crate::connector::Connector;

/// Place of checkpoints, and the options of requests.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`.
    pub url: String,
    /// Options of the store by the names of the variables that are read too, `aws_endpoint` for
    /// one; they come before those.
    pub options: Vec<(String, String)>,
    /// Bytes of a part: files that are longer are stored in parts, and fetched in ranges. S3 wants
    /// 5 MiB at least.
    pub part_bytes: usize,
    /// After so long a request is given up, and sent again.
    pub timeout: Duration,
    /// After so long it is not sent again.
    pub patience: Duration,
}

impl StoreSettings {
    /// The settings for `url`: parts of 8 MiB, a minute for a request, and three until it is given
    /// up.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            options: Vec::new(),
            part_bytes: 8 << 20,
            timeout: Duration::from_secs(60),
            patience: Duration::from_secs(180),
        }
    }

    pub(crate) fn store(&self) -> Result<(Box<dyn ObjectStore>, ObjectPath), ManagerError> {
        let told = |problem: String| format!("{}: {problem}", self.url);
        let (scheme, rest) = self.url.split_once("://").ok_or_else(|| told(EXPECTED.to_owned()))?;
        let host = rest.split('/').next().unwrap_or_default();
        if host.is_empty() {
            return Err(told(EXPECTED.to_owned()).into());
        }
        let path = rest.split_once('/').map_or("", |(_, path)| path);
        let prefix = ObjectPath::parse(path.trim_end_matches('/')).map_err(|error| told(error.to_string()))?;
        let retry = RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: 20,
            retry_timeout: self.patience.saturating_sub(self.timeout),
        };
        let is_plain = |variable: &str| std::env::var(variable).is_ok_and(|value| value.starts_with("http://"));
        let given = self.options.iter().any(|(_, value)| value.starts_with("http://"));
        let plain = given || is_plain("AWS_ENDPOINT") || is_plain("AWS_ENDPOINT_URL");
        let client = ClientOptions::new().with_allow_http(plain);
        let connector = Connector { timeout: self.timeout };
        macro_rules! built {
            ($builder:ty) => {{
                let mut builder = <$builder>::from_env()
                    .with_url(self.url.clone())
                    .with_client_options(client)
                    .with_retry(retry)
                    .with_http_connector(connector);
                for (name, value) in &self.options {
                    let key = name.to_ascii_lowercase().parse().map_err(|_| told(format!("no option `{name}`")))?;
                    builder = builder.with_config(key, value.clone());
                }
                Box::new(builder.build().map_err(|error| told(error.to_string()))?)
            }};
        }
        let store: Box<dyn ObjectStore> = match scheme {
            "s3" | "s3a" => built!(AmazonS3Builder),
            "gs" => built!(GoogleCloudStorageBuilder),
            "az" | "azure" | "abfs" | "abfss" => built!(MicrosoftAzureBuilder),
            _ => return Err(told(EXPECTED.to_owned()).into()),
        };
        Ok((store, prefix))
    }
}

/// Expected form of a URL.
const EXPECTED: &str = "expected s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX";
