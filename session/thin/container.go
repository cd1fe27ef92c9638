// Package thin stores a session on a session remote that lacks the history of the mounted repository, without pushing
// that history.
//
// A git server accepts a push only if all objects that are reachable from the new refs exist on the server. In thin
// mode, the objects that were created in the session are therefore stored as packs inside of blobs. The commit whose
// tree contains these blobs is called a container. The session remote has all objects that are reachable from it. A
// container has the following ref and files:
//
// refs/afs/thin/SESSION
//
//	container.json     refs that the session would have without thin mode, and the base: URL and commits
//	pack/000001.pack   packs of owned objects
//	base/000002.pack   packs of objects of the mounted repository, for readers that compare
//
// The packs below base are for readers that have no access to the mounted repository, such as the web page of a server,
// which shows how the session differs from it. They contain the base commits, the trees on the paths of changed files,
// and the contents of these files that the pushing host had. Their objects are deltas against owned objects, so the
// packs of owned objects must be read first. They are not needed to resume a session.
//
// A push creates a new container whose parent is the previous one, and updates the ref by compare-and-swap. The
// metadata of a session (session.MetaRef) needs no object of the mounted repository, so it is stored under an ordinary
// ref.
//
// The type Remote reads and writes the refs and objects of one session on a session remote. Its callers need not know
// whether the session uses a container.
//
// A push joins small packs with the new objects if there are too many, so that a container has fewer than joinAt packs
// plus one pack for each fullPack bytes. Each byte is pushed O(log n) times, where n is the size of the session.
//
// Data from a session remote is not trusted: sizes are limited, names are checked, and objects are hashed.
package thin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/session"
)

const (
	version      = 1
	manifestName = "container.json"
	packDir      = "pack"
	baseDir      = "base"

	maxManifest = 64 << 20 // maximum size of a manifest in bytes
	maxRefs     = 1 << 20  // maximum number of refs in a manifest
	maxPacks    = 1 << 16  // maximum number of packs in a manifest
	maxCommits  = 1 << 16  // maximum number of base commits in a manifest
	maxPack     = 8 << 30  // maximum size of a pack in bytes; a pack with one large object may exceed PackSize
)

// Prefix is the prefix of the refs of the containers of all sessions.
const Prefix = session.Prefix + "thin/"

// Ref returns the name of the ref that points to the container of the session with this name.
func Ref(name string) string { return Prefix + name }

// ErrContainer means that the ref of a container does not point to a valid container of the session.
var ErrContainer = errors.New("invalid session container")

// ErrNewer means that a container was written by a later version of artifactfs.
var ErrNewer = errors.New("session container has a newer version")

// Base identifies the history of the mounted repository to which the objects in a container refer.
type Base struct {
	URL     string      // URL of the mounted remote, without secrets
	Commits []object.ID // commits of the mounted repository to which the objects refer
}

// packEntry describes one pack of a container.
type packEntry struct {
	Name string    // file name of the pack in the tree of the container
	Blob object.ID // blob that contains the pack
	Size int64     // size of the pack in bytes
}

// manifest describes a container. It is stored as container.json.
type manifest struct {
	Session string               // name of the session
	Format  object.Format        // object format of the session
	Base    Base                 // history to which the objects in the packs refer
	Next    int                  // number of the next pack that is added
	Packs   []packEntry          // packs sorted by name, which is also the order of their age
	Bases   []packEntry          // packs below baseDir, sorted by name
	Refs    map[string]object.ID // object ids of the refs in the container, by name
}

// manifestJSON is the JSON form of manifest.
type manifestJSON struct {
	Version int               `json:"version"`
	Session string            `json:"session"`
	Format  string            `json:"format"`
	Base    baseJSON          `json:"base"`
	Next    int               `json:"next_pack"`
	Packs   []packJSON        `json:"packs"`
	Bases   []packJSON        `json:"base_packs,omitempty"`
	Refs    map[string]string `json:"refs"`
}

// baseJSON is the JSON form of Base.
type baseJSON struct {
	URL     string   `json:"url"`
	Commits []string `json:"commits"`
}

// packJSON is the JSON form of packEntry.
type packJSON struct {
	Name string `json:"name"`
	Blob string `json:"blob"`
	Size int64  `json:"size"`
}

// Described is the description of a container, for programs that read the container from a git directory.
type Described struct {
	Base         Base
	Packs, Bases []PackBlob           // packs of owned objects, and of objects of the mounted repository
	Refs         map[string]object.ID // object ids of the refs in the container, by name
}

// PackBlob is a pack in a container.
type PackBlob struct {
	ID   object.ID // blob that contains the pack
	Size int64     // size of the pack in bytes
}

// ManifestName is the name of the file in a container whose contents Describe parses.
const ManifestName = manifestName

// Describe parses the manifest of the container of the session name, with the object format f. It returns ErrNewer if a
// later version of artifactfs has written the manifest, and ErrContainer if it is invalid or belongs to another
// session.
func Describe(name string, f object.Format, text []byte) (Described, error) {
	m, err := decodeManifest(text)
	if err == nil && (m.Session != name || m.Format != f) {
		err = fmt.Errorf("%w: container belongs to session %s with object format %v", ErrContainer, m.Session, m.Format)
	}
	if err != nil {
		return Described{}, err
	}
	d := Described{Base: m.Base, Refs: m.Refs}
	for _, p := range m.Packs {
		d.Packs = append(d.Packs, PackBlob{p.Blob, p.Size})
	}
	for _, p := range m.Bases {
		d.Bases = append(d.Bases, PackBlob{p.Blob, p.Size})
	}
	return d, nil
}

// packName returns the name of the pack with the given number.
func packName(number int) string { return fmt.Sprintf("%06d.pack", number) }

// encode returns the contents of the file container.json.
func (m manifest) encode() ([]byte, error) {
	j := manifestJSON{Version: version, Session: m.Session, Format: m.Format.String(),
		Base: baseJSON{URL: m.Base.URL, Commits: []string{}},
		Next: m.Next, Packs: []packJSON{}, Refs: map[string]string{}}
	for _, id := range m.Base.Commits {
		j.Base.Commits = append(j.Base.Commits, id.String())
	}
	for _, p := range m.Packs {
		j.Packs = append(j.Packs, packJSON{p.Name, p.Blob.String(), p.Size})
	}
	for _, p := range m.Bases {
		j.Bases = append(j.Bases, packJSON{p.Name, p.Blob.String(), p.Size})
	}
	for name, id := range m.Refs {
		j.Refs[name] = id.String()
	}
	return json.MarshalIndent(j, "", " ")
}

// decodeManifest parses the contents of the file container.json. It returns ErrNewer if a later version of artifactfs
// has written the file, and ErrContainer if it is invalid.
func decodeManifest(text []byte) (manifest, error) {
	var j manifestJSON
	if len(text) > maxManifest {
		return manifest{}, fmt.Errorf("%w: manifest has %d bytes, limit is %d", ErrContainer, len(text), maxManifest)
	}
	// A Decoder stops after the first value, so call Token to check that no other value follows.
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&j); err != nil {
		return manifest{}, fmt.Errorf("%w: %w", ErrContainer, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return manifest{}, fmt.Errorf("%w: unexpected data after the JSON", ErrContainer)
	}
	// A later version may have other members, so check the version before anything else.
	if j.Version > version {
		return manifest{}, fmt.Errorf("%w: version %d", ErrNewer, j.Version)
	}
	m, err := j.manifest()
	if err != nil {
		return manifest{}, fmt.Errorf("%w: %w", ErrContainer, err)
	}
	return m, nil
}

// manifest converts j to a manifest. It returns an error if a field is invalid.
func (j manifestJSON) manifest() (manifest, error) {
	m := manifest{Session: j.Session, Base: Base{URL: j.Base.URL}, Next: j.Next,
		Refs: make(map[string]object.ID, len(j.Refs))}
	switch j.Format {
	case object.SHA1.String():
		m.Format = object.SHA1
	case object.SHA256.String():
		m.Format = object.SHA256
	default:
		return m, fmt.Errorf("unknown object format %.20q", j.Format)
	}
	switch {
	case j.Version != version:
		return m, fmt.Errorf("unknown version %d", j.Version)
	case session.ValidName(j.Session) != nil:
		return m, fmt.Errorf("invalid session name %.140q", j.Session)
	case len(j.Packs)+len(j.Bases) > maxPacks || len(j.Refs) > maxRefs || len(j.Base.Commits) > maxCommits:
		return m, fmt.Errorf("too many entries: %d packs, %d refs, %d commits", len(j.Packs), len(j.Refs),
			len(j.Base.Commits))
	case j.Next < 0 || j.Next > 1<<40:
		return m, fmt.Errorf("invalid number of the next pack %d", j.Next)
	}
	if err := plainURL(j.Base.URL); err != nil {
		return m, err
	}
	// id parses an object id, which must have the container's format. The null id is invalid.
	id := func(text string) (object.ID, error) {
		id, err := object.ParseID(text)
		if err == nil && (id.Format() != m.Format || strings.Trim(text, "0") == "") {
			err = fmt.Errorf("invalid object ID %.80q", text)
		}
		return id, err
	}
	for _, text := range j.Base.Commits {
		commit, err := id(text)
		if err != nil {
			return m, err
		}
		m.Base.Commits = append(m.Base.Commits, commit)
	}
	// packs parses a list of packs.
	packs := func(list []packJSON) (entries []packEntry, err error) {
		for _, p := range list {
			blob, err := id(p.Blob)
			if err != nil {
				return nil, err
			}
			var n int
			if _, err := fmt.Sscanf(p.Name, "%d.pack", &n); err != nil || packName(n) != p.Name || n < 0 || n >= j.Next {
				return nil, fmt.Errorf("invalid pack name %.40q", p.Name)
			}
			if p.Size < 0 || p.Size > maxPack {
				return nil, fmt.Errorf("pack %s has an invalid size: %d bytes", p.Name, p.Size)
			}
			// Newer packs have higher numbers, so packs in the order of their names must also be in the order of their age.
			if len(entries) > 0 && !older(entries[len(entries)-1].Name, p.Name) {
				return nil, fmt.Errorf("packs are not sorted by name: %s follows a newer pack", p.Name)
			}
			entries = append(entries, packEntry{p.Name, blob, p.Size})
		}
		return entries, nil
	}
	var err error
	if m.Packs, err = packs(j.Packs); err == nil {
		m.Bases, err = packs(j.Bases)
	}
	if err != nil {
		return m, err
	}
	for name, text := range j.Refs {
		at, err := id(text)
		if err != nil {
			return m, err
		}
		// A container must not contain a ref that is always an ordinary ref (function direct), because such a ref could
		// replace a ref that the session remote lists itself.
		if !refname.Valid(name) || direct(name, j.Session) || name == session.OwnerRef {
			return m, fmt.Errorf("invalid ref %.200q", name)
		}
		m.Refs[name] = at
	}
	return m, nil
}

// older reports whether the pack a is older than the pack b, because its name has a lower number.
func older(a, b string) bool { return len(a) < len(b) || len(a) == len(b) && a < b }

// plainURL returns an error if text contains a password, or cannot be the URL of a remote.
func plainURL(text string) error {
	if len(text) > 4096 || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Errorf("invalid base URL %.80q", text)
	}
	if u, err := url.Parse(text); err == nil && u.User != nil {
		if _, has := u.User.Password(); has {
			return errors.New("base URL contains a password")
		}
	}
	return nil
}

// direct reports whether ref is stored as an ordinary ref although the session name uses a container. No object of the
// mounted repository is reachable from such a ref, so it can be read without the container.
func direct(ref, name string) bool {
	return ref == session.MetaRef(name) || ref == session.AnnotationsRef(name) || ref == "HEAD" ||
		strings.HasPrefix(ref, Prefix) || strings.HasPrefix(ref, TrashPrefix)
}

// TrashPrefix is the prefix of the refs of deleted sessions.
const TrashPrefix = session.Prefix + "trash/"

// Tombstone is the last part of the name of the ref that stays of a deleted session when the trash is emptied.
const Tombstone = "deleted"

// clone returns a copy of m that does not share slices and maps with m.
func (m manifest) clone() manifest {
	c := m
	c.Base.Commits, c.Packs, c.Bases = slices.Clone(m.Base.Commits), slices.Clone(m.Packs), slices.Clone(m.Bases)
	c.Refs = make(map[string]object.ID, len(m.Refs))
	for name, id := range m.Refs {
		c.Refs[name] = id
	}
	return c
}
