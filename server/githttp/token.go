package githttp

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/artifactfs/artifactfs/server/gate"
	"github.com/artifactfs/artifactfs/server/records"
)

// tokenInfo describes the token of a request to the client, which needs the id and the name for records of approvals.
type tokenInfo struct {
	ID      string        `json:"id"`
	Actor   string        `json:"actor"`
	Session string        `json:"session"` // session for which the token was made; "" for none
	Scope   records.Scope `json:"scope"`
}

// describeToken answers with the description of the token.
func (e *exchange) describeToken(context.Context) error {
	body, err := json.Marshal(tokenInfo{e.token.ID, gate.Actor(e.token), e.token.Session, e.token.Scope})
	if err != nil {
		return err
	}
	h := e.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	_ = e.rc.SetWriteDeadline(time.Now().Add(e.s.limits.Idle))
	_, _ = e.w.Write(append(body, '\n'))
	e.audit(http.StatusOK, "token")
	return nil
}
