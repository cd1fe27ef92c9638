package records

import "fmt"

// stampsSchema adds the stamps of the last generations of each repository, the newest first. A row that an older
// program has written has no stamps until its next change.
const stampsSchema = `ALTER TABLE repos ADD COLUMN stamps TEXT NOT NULL DEFAULT '';`

const (
	stampSize = 12 // length of a stamp in characters
	stamps    = 32 // number of stamps that are kept for each repository
)

// sqliteStamp and postgresStamp are expressions for a random stamp. The first 48 bits of a random UUID are all random.
const (
	sqliteStamp   = "lower(hex(randomblob(6)))"
	postgresStamp = "substr(replace(CAST(gen_random_uuid() AS TEXT), '-', ''), 1, 12)"
)

// grow returns the assignments that increment the generation of a repository.
func grow(stamp string) string {
	return fmt.Sprintf("generation = generation + 1, stamps = substr(%s || stamps, 1, %d)", stamp, stampSize*stamps)
}

// history is the version of a repository, with the stamps of its previous versions.
type history struct {
	generation  int64
	collections int64
	stamps      string
}

const historyColumns = "generation, collections, stamps"

// fields are the fields into which historyColumns are scanned.
func (h *history) fields() []any { return []any{&h.generation, &h.collections, &h.stamps} }

func (h history) version() Version {
	return Version{Generation: h.generation, Stamp: h.stamps[:min(stampSize, len(h.stamps))], Collections: h.collections}
}

// check returns ErrCollected if the repository may not have all objects that it had at the version v: garbage was
// collected since then, or the version does not belong to this history, because the database has lost changes. For
// versions that are older than the stored stamps, only the number is checked.
func (h history) check(v Version) error {
	at := (h.generation - v.Generation) * stampSize
	if h.collections != v.Collections || at < 0 || at < int64(len(h.stamps)) && h.stamps[at:at+stampSize] != v.Stamp {
		return ErrCollected
	}
	return nil
}
