package control

import (
	"context"
	"path/filepath"
)

// CredentialRequest sets a new token for the mount at Dir, for all other mounts that use the same login on the same
// host, and for git commands in these mounts. The token is first tried on the remote. If the remote refuses the token,
// nothing is changed.
type CredentialRequest struct {
	Dir string `json:"dir"` // absolute directory of the mount, or a directory in it
	// TokenFile is the absolute path of a file with the token. The file is read again each time the remote refuses the
	// current token.
	TokenFile string `json:"token_file,omitempty"`
	Session   bool   `json:"session,omitempty"` // true if the token is for the session remote

	Token Secret `json:"-"` // sent in the field of the same name in wireCredential, because a Secret is never marshaled
}

// CredentialReply is the output of `credential set --json`.
type CredentialReply struct {
	Dir    string `json:"dir"`    // absolute directory of the mount
	Remote string `json:"remote"` // remote that the token is for, without secrets
	// true if the remote has accepted the token; false: the remote could not be reached
	Checked bool     `json:"checked"`
	Mounts  []string `json:"mounts"` // directories of all mounts that use the token from now on
}

// wireCredential is the form in which a CredentialRequest is sent. It contains the token as plain text.
type wireCredential struct {
	CredentialRequest
	Token string `json:"token,omitempty"` // token as plain text
}

// CredentialHolder is a Handler that can set new tokens for its mounts.
type CredentialHolder interface {
	// SetCredential tries a token on the remote, and sets it if the remote does not refuse it.
	SetCredential(ctx context.Context, r CredentialRequest) (CredentialReply, error)
}

// SetCredential requests that a new token is set for a mount.
func (c *Client) SetCredential(ctx context.Context, r CredentialRequest) (CredentialReply, error) {
	return call[CredentialReply](ctx, c, opCredentialSet, r, nil)
}

// validate returns an error unless the request has either a token or a token file, and an absolute directory.
func (r CredentialRequest) validate() error {
	switch {
	case r.Token == "" && r.TokenFile == "":
		return badRequest("token is missing")
	case r.Token != "" && r.TokenFile != "":
		return badRequest("token and token file exclude each other")
	case r.TokenFile != "" && !filepath.IsAbs(r.TokenFile):
		return badRequest("path of the token file is not absolute")
	}
	return needDir(r.Dir)
}
