-- Schema 2. Documents: each in a collection, under its id, also found by its index key.
CREATE TABLE documents (
    collection TEXT NOT NULL,
    id         TEXT NOT NULL,
    tenant     TEXT,
    index_key  TEXT NOT NULL,
    expires_at INTEGER,
    body       TEXT NOT NULL,
    PRIMARY KEY (collection, id)
) WITHOUT ROWID;

CREATE INDEX documents_by_index_key ON documents (collection, index_key, id);
CREATE INDEX documents_by_end ON documents (expires_at) WHERE expires_at IS NOT NULL;
