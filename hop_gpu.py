import sys, time, importlib, itertools
import numpy as np, cupy as cp, torch
import blocknb, blocknb.language as bl
at=importlib.import_module("blocknb.kernels.attention")

@blocknb.kernel
def gemm(a, b, c, m, n, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, GROUP: bl.constexpr):
    A = bl.make_tensor_descriptor(a, [m, k], [k, 1], [BM, BK])
    B = bl.make_tensor_descriptor(b, [n, k], [k, 1], [BN, BK])
    C = bl.make_tensor_descriptor(c, [m, n], [n, 1], [BM, BN])
    pid = bl.program_id(0)
    width = GROUP * bl.cdiv(n, BN)
    first = pid // width * GROUP
    size = min(bl.cdiv(m, BM) - first, GROUP)
    pm = first + (pid % width) % size
    pn = (pid % width) // size
    acc = bl.zeros((BM, BN), dtype=bl.float32)
    for i in range(bl.cdiv(k, BK)):
        x = A.load([pm * BM, i * BK])
        y = B.load([pn * BN, i * BK])
        acc = bl.dot(x, y.T, acc)
    C.store([pm * BM, pn * BN], acc.to(c.dtype.element_ty))

def call(a,b,c,cfg,**kw):
    m,k=a.shape; n=b.shape[0]
    grid=(-(-m//cfg[0])*-(-n//cfg[1]),)
    kw=dict(num_warps=cfg[3],**({'num_stages':cfg[4]} if len(cfg)>4 and cfg[4] else {}),**kw)
    return lambda: gemm[grid](a,b,c,m,n,k,BM=cfg[0],BN=cfg[1],BK=cfg[2],GROUP=8,**kw)
CFGS=[(128,256,64,8),(128,128,64,4),(64,128,64,4,8),(128,128,64,8),(64,256,64,4)]
which=sys.argv[1:] or ["check","gemm","att"]
flush=torch.empty(1<<28,dtype=torch.int8,device="cuda")
def timed(calls, rounds=12):
    got={n:[] for n in calls}
    for r in range(rounds+2):
        for n,f in calls.items():
            flush.fill_(r&1); s,e=torch.cuda.Event(True),torch.cuda.Event(True)
            s.record(); f(); e.record(); e.synchronize()
            if r>1: got[n].append(s.elapsed_time(e))
    return {n:float(np.median(t)) for n,t in got.items()}
if "check" in which:
    for (m,n,k),cfg in itertools.product(((256,512,256),(333,264,200),(1,8,64),(1000,776,1032),(4096,4096,512)),CFGS):
        a=torch.randn(m,k,device="cuda",dtype=torch.float16); b=torch.randn(n,k,device="cuda",dtype=torch.float16); c=torch.full((m,n),float("nan"),device="cuda",dtype=torch.float16)
        try: call(a,b,c,cfg)(); torch.cuda.synchronize()
        except Exception as e: print("FAIL",m,n,k,cfg,type(e).__name__,str(e)[:300]); 
        want=a.double()@b.double().T
        err=((c.double()-want).norm()/want.norm()).item()
        print("check",(m,n,k),cfg,f"{err:.2e}", "OK" if err<1e-3 else "WRONG", flush=True)
if "gemm" in which:
    for size in ((2048,)*3,(4096,)*3,(8192,)*3,(4096,4096,512),(8192,8192,1024),(1024,)*3,(256,4096,4096)):
        m,n,k=size
        a=torch.randn(m,k,device="cuda",dtype=torch.float16); b=torch.randn(n,k,device="cuda",dtype=torch.float16); c=torch.empty((m,n),device="cuda",dtype=torch.float16)
        calls={"cublas":lambda: torch.matmul(a,b.T,out=c)}
        for cfg in CFGS: calls[str(cfg)]=call(a,b,c,cfg)
        calls["nopersist 128x256"]=call(a,b,c,CFGS[0],without=("persist",)) if 0 else calls["cublas"]
        got=timed(calls); base=got["cublas"]
        print(size, f"cublas {2*m*n*k/base/1e9:.0f}", *(f"{n} {base/t:.3f}" for n,t in got.items() if n!="cublas"), sep=" | ", flush=True)
if "att" in which:
    from torch.nn.attention import sdpa_kernel, SDPBackend
    for d,causal,S in ((64,False,4096),(64,True,4096),(128,False,4096),(128,True,4096),(128,False,16384),(64,False,16384),(128,True,16384)):
        B,H=16384//S,2048//d
        q,k,v=(torch.randn(B,H,S,d,device="cuda",dtype=torch.float16) for _ in range(3)); o=torch.full_like(q,float("nan"))
        fl=4*B*H*S*S*d*(0.5 if causal else 1)
        def sd():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION): return torch.nn.functional.scaled_dot_product_attention(q,k,v,is_causal=causal)
        try: at.attention(q,k,v,o,causal=causal); torch.cuda.synchronize(); want=sd(); err=((o-want).float().norm()/want.float().norm()).item()
        except Exception as e: print("FAIL",d,causal,S,type(e).__name__,str(e)[:300]); continue
        calls={"cudnn":sd,"ours":lambda: at.attention(q,k,v,o,causal=causal)}
        got=timed(calls,8)
        print(f"d{d} causal={causal} S={S} err {err:.1e} cudnn {fl/got['cudnn']/1e9:.0f} ours {fl/got['ours']/1e9:.0f} ratio {got['cudnn']/got['ours']:.3f}",flush=True)
