package control

import (
	"time"

	"github.com/artifactfs/artifactfs/fetch/readprofile"
)

// MountFetch is the part of a MountRequest that states which data is fetched from the remote, and how long the reply
// waits. Its JSON fields are fields of the request itself.
type MountFetch struct {
	// History is "background" (fetched after the mount), "full" (fetched before the reply) or "none"; "": "background".
	History History `json:"history"`
	// Prefetch selects contents to fetch ahead: "auto" (contents that are likely to be read), "all" or "none"; "": "auto".
	Prefetch Prefetch `json:"prefetch"`
	// maximum number of bytes that are fetched with Prefetch "auto"; 0: the daemon's default
	PrefetchBudget int64 `json:"prefetch_budget"`
	readprofile.Selection
	// Wait is the state that is reached before the reply: "tree" (the root directory is readable), "git" (in addition, the
	// git directory is ready) or "all" (in addition, the prefetch is complete); "": "tree".
	Wait Wait   `json:"wait"`
	Via  string `json:"via,omitempty"` // URL of a relay through which Remote is reached; "": none
	// maximum size of the fetched contents on disk, in bytes; 0: the daemon's default
	CacheSize int64 `json:"cache_size"`
	// state directory of another daemon to read from; "": the daemon's default
	StoreFrom string `json:"store_from,omitempty"`
	// Timeout is the maximum time that this request and later reads wait for the remote; 0: the daemon's default.
	Timeout time.Duration `json:"timeout_ns"`
}

// MountAccess is the part of a MountRequest that states who owns the files and who may use them. Its JSON fields are
// fields of the request itself.
type MountAccess struct {
	AllowOther bool   `json:"allow_other"`   // other users may access the mount
	ACL        bool   `json:"acl,omitempty"` // the mount supports POSIX access control lists
	UID        uint32 `json:"uid"`           // user id of the owner of every path; 0: root
	GID        uint32 `json:"gid"`           // id of the group of every path; 0: root's group
	// GroupWrite gives the group the same permissions as the owner for files and directories of the base tree.
	GroupWrite bool `json:"group_write,omitempty"`
	// Umask is the umask with which files and directories of the base tree get their permissions; nil: 022.
	Umask *uint32 `json:"umask,omitempty"`
	// IDMap permits idmapped mounts of the mount, which containers in user namespaces need. It has no effect before Linux
	// 6.12.
	IDMap bool `json:"id_map,omitempty"`

	// ExactOwner makes a Client send UID, GID and Umask unchanged. If it is false, a Client replaces a UID or GID of 0
	// and a missing Umask by those of the calling process.
	ExactOwner bool `json:"-"`
}

// MountLogin is the part of a MountRequest by which the daemon logs in to the remote and to the session remote. The
// paths of the token files are sent as JSON fields of the request itself; the secrets and the environment are sent as
// fields of wireMount.
type MountLogin struct {
	// absolute path of a file with the token; read again each time the remote refuses the current token
	TokenFile string `json:"token_file"`
	Token     Secret `json:"-"` // sent as a field of wireMount, because a Secret itself is never marshaled

	// SessionToken and SessionTokenFile are the Token and TokenFile for the session remote. If both are empty and the
	// session remote is on the same host as the mounted remote, the token of the mounted remote is used.
	SessionToken Secret `json:"-"`
	// absolute path of a file with the token for the session remote
	SessionTokenFile string `json:"session_token_file,omitempty"`

	// Environment is the environment of the caller. Its settings for git, ssh and credential helpers apply to the remotes
	// of this mount. If Environment is nil, the settings in the daemon's environment apply.
	Environment Environment `json:"-"`
}
