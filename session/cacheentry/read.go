package cacheentry

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
)

// describe reads the description of an entry from the commit of its ref. It also returns the id of the commit that
// contains the value; the store may lack this commit. It returns an error that wraps ErrDamaged or ErrNewer if the
// commit is not a version of the entry with the ref name ref, and odb.ErrNotFound if the store does not have the commit
// itself.
func describe(objects *odb.Store, ref string, commit object.ID) (e Entry, value object.ID, err error) {
	info, err := commitIn(objects, commit)
	if err != nil {
		return e, value, err
	}
	id, err := fileIn(objects, info.Tree, InfoFile)
	if err != nil {
		return e, value, err
	}
	text, err := typed(objects, id, object.Blob, maxInfo)
	if err != nil {
		return e, value, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if e, err = Parse(ref, text); err != nil {
		return Entry{}, value, err
	}
	if len(info.Parents) != 1 {
		return Entry{}, value, fmt.Errorf("%w: commit %s has %d parents", ErrDamaged, commit, len(info.Parents))
	}
	return e, info.Parents[0], nil
}

// copyValue writes the value of an entry to w, and verifies its size and hash. commit is the commit that contains the
// value. The result written reports whether w has received at least a part of the value.
func copyValue(objects *odb.Store, e Entry, commit object.ID, w io.Writer) (written bool, err error) {
	info, err := commitIn(objects, commit)
	if err != nil {
		return false, err
	}
	id, err := fileIn(objects, info.Tree, ValueFile)
	if err != nil {
		return false, err
	}
	// The size is compared before the value is written, because it may be larger than the description says.
	t, size, err := objects.Size(id)
	switch {
	case err != nil:
		return false, fmt.Errorf("%w: %w", ErrDamaged, err)
	case t != object.Blob || size != e.Size:
		return false, fmt.Errorf("%w: value is a %s with %d bytes, want a blob with %d", ErrDamaged, t, size, e.Size)
	}
	sum := sha256.New()
	if err := objects.WriteTo(id, io.MultiWriter(w, sum)); err != nil {
		return true, err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != e.Hash {
		return true, fmt.Errorf("%w: value has the SHA-256 %s, want %s", ErrDamaged, got, e.Hash)
	}
	return true, nil
}

// commitIn returns a parsed commit of the store. It returns an error that wraps ErrDamaged if the object is not a valid
// commit.
func commitIn(objects *odb.Store, id object.ID) (object.CommitInfo, error) {
	text, err := typed(objects, id, object.Commit, maxInfo)
	if err != nil {
		return object.CommitInfo{}, err
	}
	info, err := object.ParseCommit(objects.Format(), text)
	if err != nil {
		return info, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return info, nil
}

// fileIn returns the id of the blob of the file name in a tree. It returns an error that wraps ErrDamaged if the tree
// is missing or does not contain the file.
func fileIn(objects *odb.Store, tree object.ID, name string) (object.ID, error) {
	text, err := typed(objects, tree, object.Tree, maxInfo)
	if err != nil {
		return object.ID{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	entries, err := object.ParseTree(objects.Format(), text)
	if err != nil {
		return object.ID{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	for _, e := range entries {
		if e.Name == name {
			return e.ID, nil
		}
	}
	return object.ID{}, fmt.Errorf("%w: no file %s", ErrDamaged, name)
}

// typed returns the contents of an object. It returns an error that wraps ErrDamaged if the object is too large or has
// another type.
func typed(objects *odb.Store, id object.ID, want object.Type, limit int64) ([]byte, error) {
	t, size, err := objects.Size(id)
	switch {
	case err != nil:
		return nil, err
	case t != want || size > limit:
		return nil, fmt.Errorf("%w: object %s is a %s with %d bytes", ErrDamaged, id, t, size)
	}
	_, text, err := objects.Get(id, limit)
	return text, err
}
