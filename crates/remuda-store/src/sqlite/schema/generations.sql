-- Schema 4. Every commit has a number; the proof beside the file repeats the last one that was acknowledged (see `proof.rs`).
-- `store` tells the proof of this store from that of another.
INSERT INTO meta VALUES ('commit', 0), ('store', random() & 0x7fffffffffffffff);

-- A generation begins where a store continues with less than was acknowledged: a restored copy, or an accepted loss. The
-- first generation has no row. Event numbers from `first_sequence` on are the new generation's; those between
-- `kept_sequence` and `first_sequence` are lost.
CREATE TABLE generations (
    generation     INTEGER PRIMARY KEY,
    cause          TEXT NOT NULL,
    kept_sequence  INTEGER NOT NULL,
    first_sequence INTEGER NOT NULL,
    kept_until     INTEGER NOT NULL,
    began_at       INTEGER NOT NULL
);
