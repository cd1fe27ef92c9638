package csi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// record is the stored description of a volume. There is a file for each volume of the node, and one for each
// persistent volume of the controller. A record contains no secret.
type record struct {
	ID string `json:"id"` // id of the volume
	// Attributes are the attributes of the volume. Names are the names that the name of its session can refer to.
	Attributes map[string]string `json:"attributes,omitempty"`
	Names      map[string]string `json:"names,omitempty"`
	// directory of the mount; "" in a record of the controller
	Dir string `json:"dir,omitempty"`
	// true if the volume is persistent, with its mount at the staging path
	Persistent bool     `json:"persistent,omitempty"`
	ReadOnly   bool     `json:"read_only,omitempty"` // true if the platform has requested a read-only mount
	Group      string   `json:"group,omitempty"`     // group id that the platform has requested; "": none
	Targets    []string `json:"targets,omitempty"`   // paths at which pods see the volume
	Capacity   int64    `json:"capacity,omitempty"`  // requested size in bytes; volumes have no size
}

// same reports whether two records describe the same volume at the same directory.
func (r *record) same(o *record) bool {
	a, b := *r, *o
	a.Targets, b.Targets = nil, nil
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y) // encoding/json sorts the keys of maps, so equal records have equal texts
}

// records stores the records of a driver, and excludes concurrent requests for one volume.
type records struct {
	dir string

	mu   sync.Mutex
	busy map[string]bool // volumes with a request in progress
}

// enter returns an error if another request for the volume is in progress. Otherwise the caller must call the function
// leave.
func (r *records) enter(id string) (leave func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[id] {
		return nil, status.Errorf(codes.Aborted, "another request for volume %s is in progress", id)
	}
	r.busy[id] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.busy, id)
	}, nil
}

// path returns the path of the file of a record. kind separates the records of a node from those of a controller on the
// same host.
func (r *records) path(kind, id string) string {
	sum := sha256.Sum256([]byte(id)) // the file has the name of a hash, because an id may be any text
	return filepath.Join(r.dir, kind+"-"+hex.EncodeToString(sum[:16])+".json")
}

// Kinds of records.
const (
	ofNode       = "node"
	ofController = "volume"
)

// load returns the record of a volume, or nil if there is none.
func (r *records) load(kind, id string) (*record, error) {
	b, err := os.ReadFile(r.path(kind, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var rec record
	if err == nil {
		err = json.Unmarshal(b, &rec)
	}
	if err != nil {
		return nil, fmt.Errorf("read record of volume %s: %w", id, err)
	}
	return &rec, nil
}

// save writes the record of a volume.
func (r *records) save(kind string, rec *record) error {
	b, err := json.Marshal(rec)
	if err == nil {
		err = disk.WriteFile(r.path(kind, rec.ID), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write record of volume %s: %w", rec.ID, err)
	}
	return nil
}

// remove removes the record of a volume, if there is one.
func (r *records) remove(kind, id string) error {
	if err := os.Remove(r.path(kind, id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record of volume %s: %w", id, err)
	}
	return nil
}
