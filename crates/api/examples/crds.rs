//! Prints every CustomResourceDefinition as YAML documents, for `kubectl apply --server-side -f -`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for crd in spillway_api::crds::all() {
        println!("---\n{}", serde_saphyr::to_string(&crd)?);
    }
    Ok(())
}
