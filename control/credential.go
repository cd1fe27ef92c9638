package control

import (
	"context"
	"path/filepath"
)

// CredentialRequest sets a new token for the mount at Dir, for all mounts with the same login for
// the same host, and for git commands in them. The remote checks it first: a token that is refused
// changes nothing.
type CredentialRequest struct {
	Dir       string `json:"dir"`                  // absolute, the mount or a directory in it
	TokenFile string `json:"token_file,omitempty"` // absolute; read again whenever the remote refuses the previous token
	Session   bool   `json:"session,omitempty"`    // it is for the session remote

	Token Secret `json:"-"` // crosses the socket beside the request, see wireCredential
}

// CredentialReply is the output of `credential set --json`.
type CredentialReply struct {
	Dir     string   `json:"dir"`
	Remote  string   `json:"remote"`  // that the token is for, without secrets
	Checked bool     `json:"checked"` // the remote took it; false: it could not be reached
	Mounts  []string `json:"mounts"`  // directories of all mounts that use it from now on
}

// wireCredential spells out the token.
type wireCredential struct {
	CredentialRequest
	Token string `json:"token,omitempty"`
}

// CredentialHolder is a Handler whose mounts take new tokens.
type CredentialHolder interface {
	SetCredential(ctx context.Context, r CredentialRequest) (CredentialReply, error)
}

// SetCredential hands a new token to a mount.
func (c *Client) SetCredential(ctx context.Context, r CredentialRequest) (CredentialReply, error) {
	return call[CredentialReply](ctx, c, opCredentialSet, r, nil)
}

func (r CredentialRequest) validate() error {
	switch {
	case r.Token == "" && r.TokenFile == "":
		return badRequest("no token")
	case r.Token != "" && r.TokenFile != "":
		return badRequest("a token and a token file")
	case r.TokenFile != "" && !filepath.IsAbs(r.TokenFile):
		return badRequest("the token file is no absolute path")
	}
	return needDir(r.Dir)
}
