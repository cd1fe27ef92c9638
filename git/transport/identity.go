package transport

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
)

// Identity describes the token with which this client logs in. A server of this program (artifactfs serve) returns it
// as JSON.
type Identity struct {
	Token   string `json:"id"`      // id of the token, which is not a secret
	Actor   string `json:"actor"`   // user in whose name the token acts
	Session string `json:"session"` // session to which the token is bound; "" if it is bound to none
	Scope   string `json:"scope"`   // what the token may do, such as "write"
}

const (
	identityPath = "/artifactfs/token" // URL path of the identity, relative to the URL of the repository
	maxIdentity  = 64 << 10            // maximum size of the answer in bytes
)

// Identity asks the server for the identity of this client. The result ok is false if the server is another program,
// which does not support this request. Identity returns an error only if the connection fails or ctx ends.
func (r *Remote) Identity(ctx context.Context) (i Identity, ok bool, err error) {
	// Complete the discovery first: it follows redirects of the repository, so that the request is sent to the right
	// server.
	c, _, err := r.connect(ctx)
	if err != nil {
		return i, false, err
	}
	h, isWeb := c.(*web)
	if !isWeb {
		return i, false, nil
	}
	base, _ := h.at()
	a, err := h.send(ctx, call{method: http.MethodGet, service: uploadPack,
		url: below(base, identityPath, ""), json: true})
	if err != nil {
		if ctx.Err() == nil && !isFault(err) {
			err = nil
		}
		return i, false, err
	}
	text, err := io.ReadAll(io.LimitReader(a.body, maxIdentity))
	if err != nil {
		a.abort()
		return i, false, streamFault(err)
	}
	a.finish()
	if json.Unmarshal(text, &i) != nil || i.Token == "" {
		return Identity{}, false, nil
	}
	i.Actor = cmp.Or(i.Actor, "token:"+i.Token)
	return i, true, nil
}
