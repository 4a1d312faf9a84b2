use futures::stream;

use super::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn files(folder: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    entries.map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { 1 }).sum()
}

fn key(id: u128) -> StoreKey {
    StoreKey { cluster: "c".into(), namespace: "n".into(), item: "u".into(), id: format!("{id:032x}") }
}

fn parts(count: usize, size: usize) -> impl Stream<Item = Result<Bytes, io::Error>> + Unpin {
    stream::iter((0..count).map(move |_| Ok(Bytes::from(vec![b'x'; size]))))
}

#[tokio::test]
async fn an_object_is_read_as_it_was_stored_and_listed_and_removed() {
    let folder = folder();
    let store = Store::open(&StoreSettings::Volume { path: folder.path().to_owned() }).expect("a store");
    // More than two parts of the upload, and not a whole number of them.
    let (count, size) = (200, 64 * 1024 + 1);
    let bytes = (count * size) as u64;
    let uploaded = store.upload(&key(1), bytes, parts(count, size)).await.expect("stored");
    assert_eq!(uploaded, Uploaded { bytes, sha256: hex(&Sha256::digest(vec![b'x'; count * size])) });
    let content: Vec<Bytes> = store.read(&key(1)).await.expect("no error").expect("there").try_collect().await.expect("whole");
    assert_eq!(content.iter().map(Bytes::len).sum::<usize>() as u64, bytes);
    store.upload(&key(2), 0, parts(0, 0)).await.expect("an empty file");
    store.upload(&key(3), 20, parts(4, 5)).await.expect("a small file");
    let mut listed: Vec<StoreKey> = store.list("c").map_ok(|(key, _)| key).try_collect().await.expect("a list");
    listed.sort();
    assert_eq!(listed, [key(1), key(2), key(3)]);
    assert!(store.list("other").next().await.is_none());
    for id in [1, 2, 3, 4] {
        store.remove(&key(id)).await.expect("removed, or not there");
    }
    assert!(store.read(&key(1)).await.expect("no error").is_none());
    assert_eq!(files(folder.path()), 0);
}

#[tokio::test]
async fn of_an_upload_that_fails_nothing_is_left() {
    let folder = folder();
    let store = Store::open(&StoreSettings::Volume { path: folder.path().to_owned() }).expect("a store");
    let size = PART_BYTES;
    let short = store.upload(&key(1), 3 * size as u64, parts(2, size)).await.expect_err("too short");
    assert!(matches!(short, UploadError::CutOff(_)), "{short}");
    let long = store.upload(&key(2), 2 * size as u64, parts(3, size)).await.expect_err("too long");
    assert!(matches!(long, UploadError::TooLong), "{long}");
    let broken = stream::iter([Ok(Bytes::from(vec![0; size])), Err(io::Error::other("gone"))]);
    let cut = store.upload(&key(3), 2 * size as u64, broken).await.expect_err("cut off");
    assert!(cut.to_string().contains("gone"), "{cut}");
    let small = store.upload(&key(4), 3, parts(1, 2)).await.expect_err("too short");
    assert!(matches!(small, UploadError::CutOff(_)), "{small}");
    assert_eq!(files(folder.path()), 0);
}

#[test]
fn the_rest_of_an_upload_that_a_crash_cut_off_is_removed_when_it_is_old() {
    let folder = folder();
    let deep = folder.path().join("c/n/u");
    std::fs::create_dir_all(&deep).expect("a folder");
    std::fs::write(deep.join(format!("{:032x}", 1)), "whole").expect("a file");
    std::fs::write(deep.join(format!("{:032x}#1", 2)), "half").expect("a file");
    assert_eq!(remove_cut_uploads_in(folder.path(), CUT_UPLOAD_AGE).expect("no error"), 0, "it may be under way");
    assert_eq!(remove_cut_uploads_in(folder.path(), Duration::ZERO).expect("no error"), 1);
    assert_eq!(files(folder.path()), 1);
}

#[test]
fn a_credential_that_cannot_be_in_a_header_is_named_at_the_start() {
    let check = |value: &str| check_credentials(|name| (name == "AWS_SECRET_ACCESS_KEY").then(|| value.to_owned()));
    assert!(check("abc/+=").is_ok() && check_credentials(|_| None).is_ok());
    for odd in ["", "abc\n", "a b"] {
        let words = check(odd).expect_err("odd").to_string();
        assert!(words.contains("AWS_SECRET_ACCESS_KEY") && (odd.is_empty() || !words.contains(odd)), "{words}");
    }
}

#[test]
fn the_log_has_the_code_of_an_error_and_nothing_else_that_a_server_said() {
    let source =
        "status 403: <Error><Code>SignatureDoesNotMatch</Code><CanonicalRequest>x-amz-security-token:SECRET</CanonicalRequest></Error>";
    let text = log_text(&object_store::Error::Generic { store: "S3", source: source.into() });
    assert!(text.contains("status 403") && text.ends_with("SignatureDoesNotMatch") && !text.contains("SECRET"), "{text}");
}
