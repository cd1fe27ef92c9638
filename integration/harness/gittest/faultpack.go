package gittest

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/artifactfs/artifactfs/git/object"
)

// errTruncated is returned after TruncatedPack has sent all bytes that it sends.
var errTruncated = errors.New("pack truncated by an injected fault")

// packFault applies TruncatedPack or CorruptPack to the pack in an answer.
type packFault struct {
	f   *Fault
	out io.Writer

	packets packets
	sum     hash.Hash
	held    []byte // the last bytes of the pack so far, which may be its checksum; used by CorruptPack with GoodTrailer
	seen    int64  // number of bytes of the pack so far
	err     error
}

const packBand = 1

func newPackFault(f *Fault, format object.Format, out io.Writer) *packFault {
	p := &packFault{f: f, out: out, sum: trailerHash(format)}
	p.packets.each = p.packet
	return p
}

// trailerHash returns a hash that computes the checksum at the end of a pack.
func trailerHash(f object.Format) hash.Hash {
	if f == object.SHA256 {
		return sha256.New()
	}
	return sha1.New()
}

func (p *packFault) Write(b []byte) (int, error) {
	if p.err == nil {
		p.packets.feed(b)
	}
	return len(b), p.err
}

func (p *packFault) packet(kind packetKind, payload []byte) {
	special := map[packetKind]string{flushPacket: "0000", delimPacket: "0001", endPacket: "0002"}
	switch {
	case p.err != nil:
	case kind == rawBytes:
		p.pack(payload, func(b []byte) { p.send(b) })
	case kind == dataPacket && len(payload) > 0 && payload[0] == packBand:
		p.pack(payload[1:], p.band)
	case kind == dataPacket:
		p.send(appendPacket(nil, payload))
	default:
		if len(p.held) > 0 {
			p.band(p.sum.Sum(nil))
			p.held = nil
		}
		p.send([]byte(special[kind]))
	}
}

func (p *packFault) send(b []byte) {
	if p.err == nil && len(b) > 0 {
		_, p.err = p.out.Write(b)
	}
}

func (p *packFault) band(b []byte) {
	if len(b) > 0 {
		p.send(appendPacket(nil, append([]byte{packBand}, b...)))
	}
}

// pack applies the fault to the next bytes of the pack and calls emit with the result.
func (p *packFault) pack(b []byte, emit func([]byte)) {
	from := p.seen
	p.seen += int64(len(b))
	if p.f.Kind == TruncatedPack {
		if p.seen < p.f.After {
			emit(b)
			return
		}
		emit(b[:p.f.After-from])
		if !p.packets.raw {
			p.send([]byte("0000"))
		}
		if p.err == nil {
			p.err = errTruncated
		}
		return
	}
	b = bytes.Clone(b)
	at := p.f.After
	if at < 12 {
		at = 14
	}
	if at >= from && at < p.seen {
		b[at-from] ^= 0x10
	}
	if !p.f.GoodTrailer {
		emit(b)
		return
	}
	p.held = append(p.held, b...)
	if n := len(p.held) - p.sum.Size(); n > 0 {
		p.sum.Write(p.held[:n])
		emit(p.held[:n])
		p.held = append([]byte(nil), p.held[n:]...)
	}
}

// wrongObject answers a fetch with the requested objects, but replaces the first blob by another one.
func (h *handler) wrongObject(a *reply, asked Request) error {
	c := &catFile{dir: h.backend.repoDir(asked.Repo), group: &h.s.group}
	defer c.close()
	var pack bytes.Buffer
	pack.WriteString("PACK")
	binary.Write(&pack, binary.BigEndian, [2]uint32{2, uint32(len(asked.Wants))})
	for i, id := range asked.Wants {
		t, content := object.Blob, fmt.Appendf(nil, "this is not %s\n", id)
		if i > 0 {
			var err error
			if t, content, err = c.object(id); err != nil {
				return err
			}
		}
		if err := packObject(&pack, t, content); err != nil {
			return err
		}
	}
	sum := trailerHash(asked.format)
	sum.Write(pack.Bytes())
	pack.Write(sum.Sum(nil))
	out := []byte{}
	if asked.Version == 2 {
		out = appendPacket(out, []byte("packfile\n"))
	} else {
		out = appendPacket(out, []byte("NAK\n"))
	}
	for pack.Len() > 0 {
		out = appendPacket(out, append([]byte{packBand}, pack.Next(maxPacket-5)...))
	}
	_, err := a.Write(append(out, "0000"...))
	return err
}

// packObject writes one object, not as a delta, in the format of packs (gitformat-pack).
func packObject(w *bytes.Buffer, t object.Type, content []byte) error {
	n := uint64(len(content))
	b := byte(t)<<4 | byte(n&15)
	for n >>= 4; n > 0; n >>= 7 {
		w.WriteByte(b | 0x80)
		b = byte(n & 0x7f)
	}
	w.WriteByte(b)
	z := zlib.NewWriter(w)
	if _, err := z.Write(content); err != nil {
		return fmt.Errorf("pack object: %w", err)
	}
	return z.Close()
}
