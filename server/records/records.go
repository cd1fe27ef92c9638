// Package records stores everything that a server knows except git objects: namespaces, repositories, refs, the list of
// packs of each repository, tokens, events, the audit log, usage, and leases of background work. The records are in an
// SQLite file of one server, or in a PostgreSQL database that several servers share. Both have the same tables
// (schema.go) and are used through the same statements.
//
// A ref is stored only in the records. The git directories from which stock git serves a repository are copies (package
// replica). So a push is one transaction: refs are compared and swapped, the new pack is added to the repository, and
// the events and the audit entry are written together.
//
// Transactions of PostgreSQL lock rows in this order: namespace, parent of a fork, repository, token, packs by their
// keys. Some transactions, such as two upgrades, may still wait for each other; PostgreSQL then ends one of them, and
// it is repeated.
//
// Every method may be called from any goroutine. Errors of methods may wrap ErrNotFound, ErrExists, ErrUnavailable or
// ErrFull.
package records

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

var (
	// ErrNotFound means that a record does not exist, or was deleted.
	ErrNotFound = errors.New("not found")
	// ErrExists means that a record with this name exists already.
	ErrExists = errors.New("already exists")
	// ErrNotEmpty means that a namespace cannot be deleted because it has repositories.
	ErrNotEmpty = errors.New("not empty")
	// ErrUnavailable means that the database did not answer. The caller may try again.
	ErrUnavailable = errors.New("database is unavailable")
	// ErrFull means that the database has no space left.
	ErrFull = errors.New("database is full")
	// ErrRevoked means that the token with which a push began has been revoked or has expired.
	ErrRevoked = errors.New("token is revoked or has expired")
	// ErrCursor means that a cursor of a list was not returned by an earlier request with the same query.
	ErrCursor = errors.New("invalid cursor")
	// ErrChanged means that a repository has changed since the caller read it.
	ErrChanged = errors.New("repository has changed")
	// ErrCollected means that garbage collection has removed objects of the repository since a push began, or that the
	// database has lost the changes that added the objects which the push relies on.
	ErrCollected = errors.New("repository was garbage collected during the push")
)

// Namespace is a group of repositories.
type Namespace struct {
	Name         string
	Jurisdiction string // "unrestricted", "eu" or "us"; it has no effect
	Repos        int    // number of repositories; set by Get and List
	Created      time.Time
	Updated      time.Time
}

// Status is the state of a repository.
type Status string

const (
	Ready     Status = "ready"
	Importing Status = "importing"
	Forking   Status = "forking"
)

// Repo is a repository.
type Repo struct {
	ID            string // random; not used for another repository after a deletion
	Namespace     string
	Name          string // name without regard to case is unique in the namespace
	Description   string
	DefaultBranch string // short name, such as "main"
	ObjectFormat  string // "sha1" or "sha256"
	ReadOnly      bool
	Status        Status
	Source        string // URL of an imported repository, or the parent of a fork; "" for other repositories
	// URL of the repository whose objects a thin repository does not contain; "" for other repositories
	BaseURL    string
	BaseCommit string
	Shallow    string // contents of git's file shallow; "" unless the repository was imported with a depth
	Created    time.Time
	Updated    time.Time // time of the last change of the repository or its refs
	LastPush   time.Time // time of the last push; zero before the first push

	Version
	// Deleted is the time at which the repository was deleted; zero if it was not. Only FindDeleted returns deleted
	// repositories.
	Deleted time.Time
}

// Version identifies a state of the refs and packs of a repository. A node compares the version of its replica with
// that of the row in the database.
type Version struct {
	// Generation grows by one with every change of the refs, the packs, or the default branch.
	Generation int64
	// Stamp is a random text, which is different for each generation. If the database has lost its latest changes,
	// because it was restored from a backup or a standby without them was promoted, numbers of generations are used
	// again, but stamps are not.
	Stamp string
	// Collections is the number of garbage collections that have removed objects. A push that was checked before such a
	// collection fails with ErrCollected.
	Collections int64
}

// Ref is one ref of a repository, by its full name. IDs of objects are hexadecimal.
type Ref struct {
	Name string
	ID   string
}

// Pack is a pack of git objects in the object store. A pack never changes and its ID is never used again, so any number
// of repositories can share it. Its files have the keys Key(".pack"), Key(".idx") and so on.
type Pack struct {
	ID         string   // random text
	Hash       string   // hash in git's name of the pack, pack-HASH.pack
	Extensions []string // extensions of the files, such as ".pack", ".idx", ".rev", ".bitmap"
	Bytes      int64    // total size of all files in bytes
	Objects    int64
	Created    time.Time
}

// Key returns the key in the object store of the pack's file with the extension. The file is in a directory with the
// name of the last character of the ID, which is random. So the packs are divided among 32 directories, and a new pack
// rarely needs a new directory, which would have to be synced.
func (p Pack) Key(extension string) string {
	return "packs/" + p.ID[len(p.ID)-1:] + "/" + p.ID + extension
}

// Role is the kind of a token.
type Role string

const (
	RepoToken  Role = "repo"  // allows git access to one repository
	OwnerToken Role = "owner" // allows the REST API for one namespace
	AdminToken Role = "admin" // allows the whole REST API
)

// Scope is the kind of access that a token allows: reading, or reading and writing.
type Scope string

const (
	ReadScope  Scope = "read"
	WriteScope Scope = "write"
)

// RefRule restricts a token of a repository. Without rules, a token of scope write may change every ref. With rules, it
// may change only refs that match the glob of a rule, and must not change them in the ways that the rule denies. Globs
// have the form of path.Match; in addition, "**" at the end matches any number of components.
type RefRule struct {
	Glob string
	Deny []Denial
}

// Denial is a kind of change of a ref that a rule denies.
type Denial string

const (
	NoPush      Denial = "no-push"
	NoForcePush Denial = "no-force-push" // denies updates that are not fast-forwards
	AppendOnly  Denial = "append-only"   // denies updates that are not fast-forwards, and removals
	NoDelete    Denial = "no-delete"
)

// Token is the record of a token. Only the SHA-256 of its secret is stored.
type Token struct {
	ID        string
	Hash      []byte
	Role      Role
	Scope     Scope
	Namespace string // namespace of a RepoToken or an OwnerToken
	RepoID    string // id of the repository of a RepoToken
	Label     string // free text for people
	Actor     string // user or program that uses the token; free text
	Session   string // session for which the token was made; "" for none
	Rules     []RefRule
	Created   time.Time
	Expires   time.Time // time of expiry; zero if the token does not expire (AdminToken and OwnerToken only)
	Revoked   time.Time // time of the revocation; zero if the token is not revoked
}

// Cause describes the request that has caused a change. It is stored in the audit log.
type Cause struct {
	TokenID string
	Actor   string // label or actor of the token, as text
	Remote  string // address of the client
	Method  string // HTTP method, or name of the git service
	Target  string // path of the request, without secrets
}

// Event is a change that clients can subscribe to. Body is the complete event in the form in which clients receive it.
type Event struct {
	Seq       int64 // number of the event, set by the database; numbers grow in the order of commits, with gaps
	Type      string
	Namespace string
	Repo      string // name of the repository; "" for events of a namespace
	Time      time.Time
	Body      json.RawMessage
}

// Matches reports whether the event is one of a namespace, of a repository and of one of some types. Empty parameters
// stand for all.
func (e Event) Matches(namespace, repo string, types []string) bool {
	return (namespace == "" || namespace == e.Namespace) && (repo == "" || strings.EqualFold(repo, e.Repo)) &&
		(len(types) == 0 || slices.Contains(types, e.Type))
}

// RefUpdate is a request to change a ref from the id Old to the id New. An id of zeros means that the ref does not
// exist.
type RefUpdate struct {
	Name string
	Old  string
	New  string
}

// Creates reports whether Old is an id of zeros, so that the update creates the ref.
func (u RefUpdate) Creates() bool { return strings.Trim(u.Old, "0") == "" }

// Removes reports whether New is an id of zeros, so that the update removes the ref.
func (u RefUpdate) Removes() bool { return strings.Trim(u.New, "0") == "" }

// Push is a received git push whose updates are ready to be made visible.
type Push struct {
	RepoID string
	// id of the token, which is checked again in the transaction; "" for imports, which need no token and do not count
	// as pushes
	TokenID string
	Version Version // version of the repository when the objects of the push were checked
	Updates []RefUpdate
	// MostRefs is the maximum number of refs that the token may have created, without those that it has removed; 0
	// means no limit.
	MostRefs int64
	Atomic   bool  // whether all updates or none must be made
	Pack     *Pack // pack of the new objects, whose files are stored already; nil if there are no new objects
	Cause    Cause
	// Assumed lists the refs on whose values the decision to allow the push was based. Push returns ErrChanged, and
	// changes nothing, unless they still have these values. The ID is "" for a ref that must not exist.
	Assumed []Ref
	Detail  string // further lines for the audit entry of the push
	Usage   string // operation that is counted in the usage; "" stands for "push" or, without a token, for "import"
	// Events returns the events for the updates done, which succeeded. Push calls it within the transaction, so it must
	// not block.
	Events func(done []RefUpdate) []Event
}

// TokenRefsError means that a token would have created more refs than Push.MostRefs.
type TokenRefsError struct{ Most int64 }

func (e TokenRefsError) Error() string {
	return fmt.Sprintf("a token can have created %d refs: remove some, or use another token", e.Most)
}

// AuditEntry is one call of the API or of git.
type AuditEntry struct {
	Seq    int64
	Time   time.Time
	Cause  Cause
	Result int    // HTTP status of the answer
	Detail string // further text, such as the refs of a push; contains no secret
}
