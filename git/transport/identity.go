package transport

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
)

// Identity is the answer of a server of this program to the question who a client is: a description of the token with which the
// client logs in.
type Identity struct {
	Token   string `json:"id"`      // id of the token, which is not a secret
	Actor   string `json:"actor"`   // user in whose name the token acts
	Session string `json:"session"` // session to which the token is bound; "" if it is bound to none
	Scope   string `json:"scope"`   // what the token may do, such as "write"
}

const (
	identityPath = "/artifactfs/token" // path of the answer, below the URL of a repository
	maxIdentity  = 64 << 10            // maximum size of the answer in bytes
)

// Identity asks the server who this client is. The result ok is false if the server is another program, which does not know the
// question. Only failures of the connection, and the end of ctx, are errors.
func (r *Remote) Identity(ctx context.Context) (i Identity, ok bool, err error) {
	// The discovery follows redirects of the repository, so that the question is sent to the right server.
	c, _, err := r.connect(ctx)
	if err != nil {
		return i, false, err
	}
	h, isWeb := c.(*web)
	if !isWeb {
		return i, false, nil
	}
	base, _ := h.at()
	a, err := h.send(ctx, call{method: http.MethodGet, service: uploadPack, url: below(base, identityPath, ""), json: true})
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
