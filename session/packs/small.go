package packs

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/storer"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
)

// Limits of a pack that is made without a git process, because to start one would take longer. Larger packs are made by
// git, which uses less memory and reuses the entries of existing packs.
const (
	maxObjects = 200
	maxBytes   = 1 << 20 // maximum size in bytes of the contents of all objects
	window     = 10      // number of objects with which each object is compared to find a delta, as in git
)

// objects is the set of the objects of a small pack, in the form that the encoder of packs requires.
type objects struct {
	storer.EncodedObjectStorer // the encoder calls EncodedObject only
	contents                   map[plumbing.Hash]plumbing.EncodedObject
}

// EncodedObject returns an object of the set.
func (s objects) EncodedObject(_ plumbing.ObjectType, id plumbing.Hash) (plumbing.EncodedObject, error) {
	if o, found := s.contents[id]; found {
		return o, nil
	}
	return nil, plumbing.ErrObjectNotFound
}

// Small returns a pack of the objects ids, which it reads by the function get. Deltas in the pack refer only to objects
// in the same pack. The result is nil if the objects exceed the limits of this file, or if their format is not SHA-1,
// because the encoder supports no other.
func Small(f object.Format, ids []object.ID, get func(object.ID, int64) (object.Type, []byte, error)) ([]byte, error) {
	if f != object.SHA1 || len(ids) > maxObjects {
		return nil, nil
	}
	all := objects{contents: map[plumbing.Hash]plumbing.EncodedObject{}}
	var hashes []plumbing.Hash
	left := int64(maxBytes)
	for _, id := range ids {
		hash := plumbing.Hash(id.Bytes())
		if all.contents[hash] != nil {
			continue
		}
		t, content, err := get(id, left)
		if errors.Is(err, odb.ErrTooLarge) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("create pack: read object %s: %w", id, err)
		}
		left -= int64(len(content))
		o := &plumbing.MemoryObject{}
		o.SetType(plumbing.ObjectType(t)) // both are the types of entries of a pack
		if _, err := o.Write(content); err != nil {
			return nil, err
		}
		if o.Hash() != hash {
			return nil, fmt.Errorf("create pack: object %s has hash %s", id, o.Hash())
		}
		all.contents[hash] = o
		hashes = append(hashes, hash)
	}
	var pack bytes.Buffer
	if _, err := packfile.NewEncoder(&pack, all, true).Encode(hashes, window); err != nil {
		return nil, fmt.Errorf("create pack: %w", err)
	}
	return pack.Bytes(), nil
}
