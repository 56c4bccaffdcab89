-- Schema 2. Small things kept beside the jobs: each on a shelf, under its id, found also by its mark.
CREATE TABLE documents (
    shelf      TEXT NOT NULL,
    id         TEXT NOT NULL,
    tenant     TEXT,
    mark       TEXT NOT NULL,
    expires_at INTEGER,
    body       TEXT NOT NULL,
    PRIMARY KEY (shelf, id)
) WITHOUT ROWID;

CREATE INDEX documents_by_mark ON documents (shelf, mark, id);
CREATE INDEX documents_by_end ON documents (expires_at) WHERE expires_at IS NOT NULL;
