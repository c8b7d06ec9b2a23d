"""Common English words for prompts of a given length: most are one token each in most vocabularies.

More than `evals.spec.MAX_CONCURRENCY`, so that every request of a burst starts with a word of its own.
The list is part of every sweep's workload hash.
"""

from __future__ import annotations

WORDS: tuple[str, ...] = tuple(
    """
    able above accept across act add afraid after again age agree air all allow almost alone along already also
    always among amount ancient and anger animal answer any apart apple area arm army around arrive art ask
    autumn away baby back bad bag bake balance ball band bank bar bare barn base basket bath beach bean bear
    beat beauty become bed bee before begin behind believe bell below belt bench bend berry best better between
    beyond big bird birth bit bitter black blade blame blank blind block blood blow blue board boat body bone
    book boot border born borrow both bottle bottom bowl box boy brain branch brave bread break breath brick
    bridge brief bright bring broad brother brown brush build burn bus bush busy butter button buy cake calm
    camera camp can candle cap car card care carpet carry case castle cat catch cause cave ceiling cell center
    chain chair chance change cheap check cheese chest chicken chief child choice choose church circle city
    claim class clay clean clear clever climb clock close cloth cloud club coast coat coffee coin cold collect
    color common company complete cook cool copper copy corn corner cost cotton count country couple course
    cousin cover cow crack craft cream cross crowd crown cry cup curtain curve customer cut daily damage dance
    danger dark date daughter day dead deal dear debt decide deep deer degree delay desert design desk detail
    dinner dirt discover dish distance divide doctor dog door double doubt down draw dream dress drink drive
    drop dry duck dust duty each eager early earn earth east easy eat edge effort egg eight either electric
    empty end enemy energy engine enjoy enough enter equal escape even event ever every exact example excite
    expect explain eye face fact fail fair faith fall family famous far farm fashion fast father fault favor
    fear feather feed feel fence few field fight figure fill film find fine finger finish fire first fish fit
    five flag flame flat flight float floor flow flower fly fold follow food foot force forest forget fork form
    forward four fox frame free fresh friend front fruit full fun future game garden gas gate gather general
    gentle giant gift girl give glad glass glove goal goat gold good grain grand grass gray great green ground
    group grow guard guess guest guide habit hair half hall hammer hand handle hang happen happy harbor hard
    harvest hat have head health hear heart heat heavy height hello help hide high hill history hit hold hole
    holiday home honest honey hope horn horse hospital hotel hour house huge human hundred hunt hurry ice idea
    image inch indeed industry inside iron island item jacket job join joke journey joy judge juice jump just
    keep kettle key kick kind king kitchen knee knife knock know ladder lady lake lamp land language large last
    late laugh law lay lazy lead leaf learn least leather leave left leg lemon length less lesson letter level
    library lie lift light like limit line lion lip list listen little live local lock long look loose lose lost
    loud love low luck lunch machine magic mail main make man many map march mark market match matter meal mean
    measure meat medicine meet memory metal method middle might mile milk mind minute mirror miss mix model
    modern moment money monkey month moon more morning most mother motor mountain mouse mouth move much music
    must nail name narrow nation nature near neat neck need needle neighbor nest never new news next nice night
    nine noise none noon north nose note nothing notice number nurse object ocean offer office often oil old
    once one onion only open orange order other our out oven over own page pain paint pair palace pale pan paper
    parent park part party pass past path pause pay peace pear pen people pepper perfect period person phone
    photo piano pick picture piece pilot pink pipe place plain plan plane planet plant plastic plate play please
    plenty pocket poem point police polite pool poor popular port post pot potato pound pour powder power
    practice prepare present press pretty price print prize problem product promise proof proud public pull
    pupil pure purple push put queen question quick quiet quite rabbit race radio rail rain raise range rare
    rate raw reach read ready real reason record red relax remain remember rent repair repeat reply report rest
    result return rice rich ride right ring rise river road rock roll roof room root rope rose rough round row
    royal rub rule run rush sad safe sail salad salt same sand save scale scene school science sea search season
    seat second secret seed seem sell send sense serve seven several shade shadow shake shape share sharp sheep
    sheet shelf shell shine ship shirt shoe shop shore short shoulder shout show shut side sign silence silk
    silver simple since sing sister six size skill skin skirt sky sleep slice slide slow small smart smell smile
    smoke smooth snake snow soap social soft soil soldier solid some son song soon sort sound soup south space
    speak special speed spell spend spoon sport spread spring square stable stage stair stamp stand star start
    state station stay steal steam steel step stick still stone stop store storm story straight strange stream
    street strike string strong student study subject sugar suit summer sun supper sure surface surprise sweet
    swim switch table tail take talk tall task taste taxi tea teach team tear tell ten tennis tent term test
    thank theater thick thin thing think third thirty thousand thread three throat through throw thumb ticket
    tie tiger tight till time tiny tired title today toe together tomorrow tone tool tooth top total touch tour
    towel tower town toy track trade traffic train travel treat tree trick trip trouble truck true trust truth
    try turn twelve twenty twice two type ugly umbrella uncle under union unit until upon use useful usual
    valley value van various vegetable very village visit voice wait walk wall want warm wash waste watch water
    wave way weak wealth wear weather wedding week weigh welcome well west wet what wheel when where which while
    whisper white whole why wide wife wild will win wind window wine wing winter wire wise wish with woman
    wonder wood wool word work world worry worth wrap write wrong yard year yellow yes yesterday young zero
    """.split()  # noqa: SIM905 - a thousand quoted words are no longer a text
)
